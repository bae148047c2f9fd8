"""What was larger than the limits of test_size.py when they were set; it may only become smaller."""

TOLERATED: dict[str, int] = {
    "cluster/master/master.py:Master fields": 28,
    "cluster/slave/slave.py:Slave fields": 40,
    "config/run.py:RunConfig fields": 17,
    "core/data_messages.py:Delivery fields": 21,
    "runtime/hosts.py:MasterHost fields": 19,
    "runtime/simulator/simulator.py:Simulation fields": 30,
}
