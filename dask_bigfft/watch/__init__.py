"""Progress of runs, and reports on them.

::

    progress.py  counts tasks of runs and shows their progress: terminal, notebook
    report.py    compares measurements (`events.RECORD`) with the forecast: text, table, picture
"""
