"""`python -m jobs.reindex`: the commands of `raymq reindex`, for `ray job submit`."""

from jobs.reindex.command import app

if __name__ == "__main__":
    app(prog_name="python -m jobs.reindex")
