"""The demo: sends flights through a cluster, kills a broker meanwhile, and checks that no flight is lost."""
