"""What a batch is: columns, their types, and how bytes become them."""
