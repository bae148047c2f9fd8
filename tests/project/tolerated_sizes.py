"""What was larger than the limits of test_size.py when they were set; it may only become smaller."""

TOLERATED: dict[str, int] = {
    "cluster/gateway/gateway.py:Gateway fields": 25,
    "cluster/slave/slave.py:Slave fields": 40,
    "config/run.py:RunConfig fields": 18,
    "core/data_messages.py:Delivery fields": 21,
    "runtime/simulator/simulator.py:Simulation fields": 30,
}
