"""One short class a model; file name = lower-case class name (RecBole's rule)."""
