//! Multi-step cell operations, used by the command line and the console
