"""Graph to torch.nn.Module, one small function a layer kind."""
