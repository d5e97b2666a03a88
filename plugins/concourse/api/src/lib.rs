//! The API types of the Concourse pack (concourse-ci.org/v1alpha1).
