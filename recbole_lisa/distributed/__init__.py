"""Several processes that train and evaluate as one."""
