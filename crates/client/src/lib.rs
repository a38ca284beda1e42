//! The client side without a mount: cells, volumes, paths, callbacks
