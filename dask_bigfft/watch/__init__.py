"""Runs shown while they go on, and reports afterwards.

::

    progress.py  counts tasks into summaries of runs, and shows them: terminal, notebook
    report.py    holds measurements (`events.RECORD`) against the forecast: text, table, picture
"""
