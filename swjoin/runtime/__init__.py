"""Running roles: MPI, one process, the simulator; launching ranks and writing reports.

Stays out: decisions of the roles, forecasts, checks of the machine.
"""
