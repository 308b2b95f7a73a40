"""The MuJoCo ant: Ant-Circle and Ant-Gather."""
