"""The one exception whose message is meant for the user, shown as one line without a traceback."""


class UserError(Exception):
    """Something the user can mend. The message names the field or file, the rule, the value and
    the remedy, in one line."""
