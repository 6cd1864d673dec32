"""Tables: of text, Arrow and Parquet, in files and in memory, as the columns and samples of a reader."""
