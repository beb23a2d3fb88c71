"""`raymq bench`: how fast the parts are on this machine, one file a bench."""
