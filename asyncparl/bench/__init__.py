"""What asyncparl costs, beside its limits and its peers, measured in one run: `asyncparl bench`.

`parts.py` lists what is measured. Each part runs in a process of its own (`measure.py`), each peer in a process with
its own packages (`peers/`), which `installing.py` has put into a virtual environment; `running.py` starts them one
after the other and joins what they wrote down; `report.py` makes the tables.
"""
