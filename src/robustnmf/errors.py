"""Errors with a meaning of their own."""


class IncompatibleError(ValueError):
    """Two parts that cannot work together."""


class DataQualityWarning(UserWarning):
    """Data so contaminated that the fit should not be trusted."""


class MissingExtraError(ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f'This needs {module}, which is not installed. Run: pip install "robustnmf[{extra}]"')
