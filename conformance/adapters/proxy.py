"""What adapters put in place of a module that a script uses."""


class Proxy:
    """A module with some of its attributes replaced."""

    def __init__(self, module, **replaced):
        self.__dict__.update(replaced, module=module)

    def __getattr__(self, name):
        return getattr(self.module, name)
