"""The control of a cluster, its client and its command line.

client     producers, consumers and administration from Python
control    the driver: compares a topology with the running actors and applies the difference
launch     its public functions; `standalone` serves a broker in this process, without Ray
views      what the command line and the console show
autoscale  adds and removes elastic brokers
cli, console
lab        demo, benchmarks and autoscaling experiments
"""
