"""LBANN's own callbacks: its files, its printed lines, and its spellings of what has no effect here.

`descend` and `descend.callbacks` offer them under the names that they always had.
"""
