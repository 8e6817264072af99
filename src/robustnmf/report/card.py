"""A picture on the page."""

from dataclasses import dataclass

from robustnmf.report.drawing import natural_width


@dataclass(frozen=True)
class Card:
    """A component, or another picture, with its caption."""

    caption: str
    svg: str = ""
    image: str = ""

    @property
    def width(self) -> float:
        """How wide the drawing was made, in points."""
        return natural_width(self.svg)
