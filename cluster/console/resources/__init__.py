"""The resources of the console's API, one module for each subject. Each has `routes()`."""
