"""Says to an address what a file holds, and prints as JSON how much was answered, and whether we were hung up on.

python replay.py HOST PORT FILE
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

PATIENCE_S = 12.0

answer, hung_up = b"", False
with socket.create_connection((sys.argv[1], int(sys.argv[2])), PATIENCE_S) as connection:
    try:
        connection.sendall(Path(sys.argv[3]).read_bytes())
        while data := connection.recv(1 << 16):
            answer += data
        hung_up = True
    except ConnectionError:
        hung_up = True
    except TimeoutError:
        pass
print(json.dumps([len(answer), hung_up]))
