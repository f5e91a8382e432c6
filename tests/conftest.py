"""What every test runs under, however pytest was started."""
import os

# No test reaches a hub. Where none can be reached either, a name that is no folder is asked for again and again, for
# half a minute, before it is refused. Set before transformers is imported, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
