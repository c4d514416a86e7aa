"""Keys, defaults and checks of the settings of a run."""
