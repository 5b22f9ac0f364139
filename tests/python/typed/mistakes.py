"""Mistakes that type checkers find. Both report an error in each line that ends with `# error`, and in no other."""

import forebay
from forebay import Batch, Table


def of_arguments(table: Table, batch: Batch) -> None:
    table.load(batch_sise=32)  # error
    table.load(batch_size="32")  # error
    table.load(on_error="ignore")  # error
    forebay.load("photos.sql", delivery="random")  # error
    forebay.load("photos.sql", shuffle=1.5)  # error
    table.explain(batch_size=32)  # error
    table.preview(rows=3, windows=4)  # error
    table.pack(16, strategy="first_fit")  # error
    table.mixup(0.2, classes=10)  # error
    table.filter(3)  # error
    table.join(table, on="id", how="outer")  # error
    table.sort("id", descending="yes")  # error
    table.group_by("id").agg("count(*)")  # error
    forebay.Session(thread=4)  # error
    batch.to()  # error
    forebay.load("photos.sql", batch_size=32, on_error="skip", delivery="dynamic", job="train")
