//! The smallest correct plugin.
