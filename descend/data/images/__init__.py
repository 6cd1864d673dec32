"""Images: decoding, and the form that all images of a data set share."""
