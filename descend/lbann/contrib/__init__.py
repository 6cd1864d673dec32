"""What LBANN keeps apart: launching with the settings of a centre, arguments of scripts, models and modules."""
