"""These models inside the functions of RecBole itself."""
