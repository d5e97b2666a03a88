//! Reconciles concourse-ci.org/v1alpha1 Team.
