"""The web console: a server of JSON resources and of the pages that show them."""
