"""The checker that the suite puts around every function of liesparse: an int is a fine float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
