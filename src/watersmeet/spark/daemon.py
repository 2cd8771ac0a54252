"""The module that the setting ``spark.python.daemon.module`` names; see `watersmeet.spark.private.daemon`."""

from __future__ import annotations

from watersmeet.spark.private.daemon import main

if __name__ == "__main__":
    main()
