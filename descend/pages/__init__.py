"""What pages that open offline are made of: charts drawn by Vega-Lite, tables, and one style for all of them."""
