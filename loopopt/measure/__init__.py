"""`RankTrace`s of one window -> `WindowMeasurement`."""

from loopopt.measure.codec import measurement_from_json, measurement_to_json
from loopopt.measure.window import measure_window

__all__ = ["measure_window", "measurement_from_json", "measurement_to_json"]
