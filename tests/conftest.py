import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from terminal import as_in_a_terminal

as_in_a_terminal()
