"""Layers as plain NumPy: loops over places, written from the formulas alone."""

import math

import numpy as np


def convolution(x, kernel, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Each output is the sum of the products under one place of the window."""
    space = x.ndim - 2
    stride, padding, dilation = (np.broadcast_to(one, space) for one in (stride, padding, dilation))
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    size = kernel.shape[2:]
    out = [(padded.shape[2 + i] - dilation[i] * (size[i] - 1) - 1) // stride[i] + 1 for i in range(space)]
    y = np.zeros((len(x), len(kernel), *out))
    inner = kernel.shape[1]
    for k in range(len(kernel)):
        first = k // (len(kernel) // groups) * inner
        for place in np.ndindex(*out):
            window = tuple(
                slice(place[i] * stride[i], place[i] * stride[i] + dilation[i] * (size[i] - 1) + 1, dilation[i])
                for i in range(space)
            )
            part = padded[(slice(None), slice(first, first + inner), *window)]
            y[(slice(None), k, *place)] = (part * kernel[k]).reshape(len(x), -1).sum(1)
    return y if bias is None else y + bias.reshape(-1, *(1,) * space)


def deconvolution(x, kernel, bias=None, stride=1, padding=0, extra=0, dilation=1, groups=1):
    """Each input adds the kernel, times itself, at its place of the output."""
    space = x.ndim - 2
    stride, padding, extra, dilation = (np.broadcast_to(one, space) for one in (stride, padding, extra, dilation))
    size, filters = kernel.shape[2:], kernel.shape[1]
    full = [(x.shape[2 + i] - 1) * stride[i] + dilation[i] * (size[i] - 1) + 1 + extra[i] for i in range(space)]
    y = np.zeros((len(x), filters * groups, *full))
    for c in range(x.shape[1]):
        first = c // (x.shape[1] // groups) * filters
        for place in np.ndindex(*x.shape[2:]):
            for offset in np.ndindex(*size):
                at = tuple(place[i] * stride[i] + offset[i] * dilation[i] for i in range(space))
                product = x[(slice(None), c, *place)][:, None] * kernel[(c, slice(None), *offset)]
                y[(slice(None), slice(first, first + filters), *at)] += product
    y = y[(slice(None), slice(None), *(slice(padding[i], full[i] - padding[i]) for i in range(space)))]
    return y if bias is None else y + bias.reshape(-1, *(1,) * space)


def pooling(x, mode, size, stride, padding):
    """The largest or the mean entry under each place of the window; "average" counts the padding."""
    space = x.ndim - 2
    size, stride, padding = (np.broadcast_to(one, space) for one in (size, stride, padding))
    out = [(x.shape[2 + i] + 2 * padding[i] - size[i]) // stride[i] + 1 for i in range(space)]
    y = np.zeros((*x.shape[:2], *out))
    for place in np.ndindex(*out):
        begin = [place[i] * stride[i] - padding[i] for i in range(space)]
        window = tuple(slice(max(begin[i], 0), min(begin[i] + size[i], x.shape[2 + i])) for i in range(space))
        part = x[(slice(None), slice(None), *window)].reshape(*x.shape[:2], -1)
        if mode == "max":
            y[(slice(None), slice(None), *place)] = part.max(2)
        else:
            count = np.prod(size) if mode == "average" else part.shape[2]
            y[(slice(None), slice(None), *place)] = part.sum(2) / count
    return y


def local_response(x, width, alpha, beta, k):
    reach, channels = width // 2, x.shape[1]
    y = np.zeros_like(x)
    for c in range(channels):
        near = x[:, max(c - reach, 0) : min(c + reach, channels - 1) + 1]
        y[:, c] = x[:, c] * (k + alpha * (near**2).sum(1)) ** -beta
    return y


def gru(sequence, hidden, *weights):
    """PyTorch's form: the reset gate behind the product; gates in the order reset, update, new."""
    layers = len(weights) // 4
    size = weights[1].shape[1]
    state = hidden.reshape(len(hidden), layers, size)
    rows = sequence
    for layer in range(layers):
        ih, hh, b_ih, b_hh = weights[4 * layer : 4 * layer + 4]
        h, out = state[:, layer], []
        for t in range(rows.shape[1]):
            i_r, i_z, i_n = np.split(rows[:, t] @ ih.T + b_ih, 3, 1)
            h_r, h_z, h_n = np.split(h @ hh.T + b_hh, 3, 1)
            r, z = 1 / (1 + np.exp(-i_r - h_r)), 1 / (1 + np.exp(-i_z - h_z))
            n = np.tanh(i_n + r * h_n)
            h = (1 - z) * n + z * h
            out.append(h)
        rows = np.stack(out, 1)
    return rows


def softmax(x, axes):
    shifted = np.exp(x - x.max(axes, keepdims=True))
    return shifted / shifted.sum(axes, keepdims=True)


def normalized(x, axes, eps, ddof=0):
    """(x − mean) / √(variance + ε), the sum of squares divided by n − ddof."""
    variance = x.var(axes, keepdims=True, ddof=ddof)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(variance + eps)


def dft_abs(x):
    """|Σ x exp(−2πi k·n/N)| of each channel, by matrices of roots of one."""
    y = x.astype(complex)
    for axis in range(2, x.ndim):
        n = np.arange(x.shape[axis])
        roots = np.exp(-2j * math.pi * np.outer(n, n) / len(n))
        y = np.moveaxis(np.moveaxis(y, axis, -1) @ roots, -1, axis)
    return abs(y)


def pixel(image, row, column):
    """Channels of an image (C, H, W) between pixels; zero outside."""
    total = np.zeros(len(image))
    for r in (math.floor(row), math.floor(row) + 1):
        for c in (math.floor(column), math.floor(column) + 1):
            if 0 <= r < image.shape[1] and 0 <= c < image.shape[2]:
                total += image[:, r, c] * (1 - abs(row - r)) * (1 - abs(column - c))
    return total


def moved(images, angles, shears=None, translations=None):
    """Output pixel p taken from c + S R (p − c) + t."""
    n, _, height, width = images.shape
    shears = np.zeros((n, 2)) if shears is None else shears
    translations = np.zeros((n, 2)) if translations is None else translations
    y = np.zeros_like(images)
    cx, cy = width // 2, height // 2
    for i, row, column in np.ndindex(n, height, width):
        turn = math.radians(angles[i, 0])
        x1, y1 = column - cx, row - cy
        x1, y1 = math.cos(turn) * x1 - math.sin(turn) * y1, math.sin(turn) * x1 + math.cos(turn) * y1
        x1, y1 = x1 + shears[i, 0] * y1, y1 + shears[i, 1] * x1
        y[i, :, row, column] = pixel(images[i], y1 + translations[i, 1] + cy, x1 + translations[i, 0] + cx)
    return y


def resized(images, height, width):
    """Pixel centres at one half, and edges that go on."""
    n, channels, rows, columns = images.shape
    edged = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    y = np.zeros((n, channels, height, width))
    for i, row, column in np.ndindex(n, height, width):
        place = ((row + 0.5) * rows / height + 0.5, (column + 0.5) * columns / width + 0.5)
        y[i, :, row, column] = pixel(edged[i], *place)
    return y


def picked(x, index, axis):
    """Entries at indices along an axis; 0 for those out of range."""
    y = np.zeros((*x.shape[:axis], index.shape[1], *x.shape[axis + 1 :]))
    for n, i in np.ndindex(*index.shape):
        at = math.floor(index[n, i])
        if 0 <= at < x.shape[axis]:
            y[n].swapaxes(0, axis - 1)[i] = x[n].swapaxes(0, axis - 1)[at]
    return y


def placed(x, index, dims, axis):
    """Entries added at indices along an axis; those out of range are left out."""
    y = np.zeros((len(x), *dims))
    for n, i in np.ndindex(*index.shape):
        at = math.floor(index[n, i])
        if 0 <= at < dims[axis - 1]:
            y[n].swapaxes(0, axis - 1)[at] += x[n].swapaxes(0, axis - 1)[i]
    return y


def cropped(x, places, dims):
    y = np.zeros((len(x), *dims))
    for n in range(len(x)):
        begins = [min(int(p * (s - d + 1)), s - d) for p, s, d in zip(places[n], x.shape[1:], dims, strict=True)]
        y[n] = x[n][tuple(slice(b, b + d) for b, d in zip(begins, dims, strict=True))]
    return y


def largest(row, k):
    """Places of the k largest entries, the smaller index first among equals."""
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


def in_top(x, k):
    y = np.zeros_like(x)
    for n in range(len(x)):
        y[n].reshape(-1)[largest(x[n].reshape(-1), k)] = 1
    return y


def looked_up(x, table, padding=None):
    """The table's columns at indices rounded down; zeros out of range and at the padding."""
    y = np.zeros((*x.shape, len(table)))
    for place in np.ndindex(*x.shape):
        at = math.floor(x[place])
        if 0 <= at < table.shape[1] and at != padding:
            y[place] = table[:, at]
    return y
