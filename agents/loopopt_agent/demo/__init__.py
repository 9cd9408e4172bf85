"""A small real job to try loopopt on: see `loopopt_agent.demo.train`."""
