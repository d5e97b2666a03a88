//! Conformance: the same assertions over plain HTTP against the embedded server and kube-apiserver.
//!
//! Every test is one `async fn(&Target)`, run twice. The real runs need a kubeconfig in `OSTLER_TEST_KUBECONFIG`.
//! Each test has its own namespace and CRD group, so that tests run in parallel.

mod apply;
mod controllers;
mod embedded_only;
mod generated;
mod kubectl;
mod lifecycle;
mod lists;
mod objects;
mod openapi;
mod public_definitions;
mod schemas;
mod target;

/// Declares every test for both servers.
macro_rules! conformance {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn embedded() {
                let (server, target) = crate::target::embedded().await;
                crate::$module::$name(&target).await;
                server.shutdown().await;
            }

            // By default, because the comparison is what these tests are for.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs the real control plane: cargo xtask test real"]
            async fn real_default() {
                crate::$module::$name(&crate::target::real()).await;
            }
        })*
    };
}

mod columns_of_built_in_kinds_are_those_of_the_real_server {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs the real control plane: cargo xtask test real"]
    async fn real_default() {
        crate::openapi::columns_of_built_in_kinds_are_those_of_the_real_server(&crate::target::real()).await;
    }
}

mod schemas_of_built_in_kinds_are_those_of_the_real_server {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs the real control plane: cargo xtask test real"]
    async fn real_default() {
        crate::openapi::schemas_of_built_in_kinds_are_those_of_the_real_server(&crate::target::real()).await;
    }
}

mod public_definitions_are_answered_alike {
    // A real server is busy with so many definitions for a while after the test.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs the real control plane: cargo xtask test real"]
    async fn real_default_alone() {
        crate::public_definitions::public_definitions_are_answered_alike(&crate::target::real()).await;
    }
}

mod commands_of_kubectl_are_answered_alike {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs the real control plane: cargo xtask test real"]
    async fn real_default() {
        crate::kubectl::commands_of_kubectl_are_answered_alike().await;
    }
}

mod rollouts_of_kubectl_end_with_the_stand_ins {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs kubectl: cargo xtask test real"]
    async fn real_default() {
        crate::kubectl::rollouts_end_with_the_stand_ins().await;
    }
}

conformance! {
    apply::applied_field_is_owned_shared_and_released,
    apply::apply_conflict_is_reported_and_can_be_forced,
    apply::applied_lists_merge_by_key,
    apply::status_is_applied_by_its_subresource_only,
    apply::update_takes_over_field_ownership,
    lifecycle::finalizer_defers_deletion,
    lifecycle::deleted_owner_deletes_dependents,
    lifecycle::deleted_namespace_deletes_its_contents,
    lifecycle::deletion_checks_preconditions,
    lifecycle::pod_on_a_node_stays_until_its_kubelet_removes_it,
    lifecycle::resize_of_a_pod_takes_resources_alone,
    lifecycle::log_of_a_pod_without_a_node_is_empty,
    lifecycle::token_of_a_service_account_is_reviewed_with_its_rights,
    lifecycle::pod_without_a_node_is_removed_at_once,
    lists::selectors_filter_lists,
    lists::pages_show_one_snapshot,
    lists::table_has_columns_of_the_definition,
    lists::tables_of_built_in_kinds_have_the_same_cells,
    lists::watch_delivers_changes_in_order,
    lists::watch_with_selector_reports_entering_and_leaving_objects,
    lists::initial_events_end_with_bookmark,
    objects::bytes_of_a_secret_are_a_text_or_a_list,
    objects::discovery_lists_kinds,
    objects::object_is_created_read_updated_and_deleted,
    objects::failed_request_gives_status_with_code_and_reason,
    objects::generation_counts_spec_changes,
    objects::generation_counts_status_changes_without_the_subresource,
    objects::secret_string_data_becomes_data,
    objects::patch_types_change_objects,
    objects::unchanged_update_keeps_resource_version,
    objects::dry_run_stores_nothing,
    objects::size_beyond_its_limit_is_refused,
    schemas::invalid_object_is_refused_with_field_paths,
    schemas::unknown_fields_follow_field_validation,
    schemas::defaults_are_applied,
    schemas::transition_rules_compare_with_old_object,
    schemas::transition_rules_compare_items_of_the_same_key,
    schemas::null_fields_are_missing_in_rules,
    schemas::all_served_versions_show_an_object,
}
