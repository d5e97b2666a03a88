//! The protocol, asserted over plain HTTP: the same assertions against the embedded server and a real one.
//!
//! Every group is one `async fn(&Target)`, run twice. The real runs need a kubeconfig in `OSTLER_TEST_KUBECONFIG`.
//! Each group has a namespace and a CRD group of its own, so that they run side by side.

mod apply;
mod embedded_only;
mod lifecycle;
mod lists;
mod objects;
mod schemas;
mod target;

/// Declares every group for both servers.
macro_rules! conformance {
    ($($group:path => $name:ident),* $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let (server, target) = crate::target::embedded().await;
                $group(&target).await;
                server.shutdown().await;
            })*
        }
        mod real {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs the real control plane: cargo xtask test real"]
            async fn $name() {
                $group(&crate::target::real()).await;
            })*
        }
    };
}

conformance! {
    crate::apply::fields_are_owned_shared_and_given_up => apply_fields,
    crate::apply::conflicts_are_told_and_can_be_forced => apply_conflicts,
    crate::apply::lists_merge_by_key => apply_lists,
    crate::apply::status_is_applied_apart => apply_status,
    crate::apply::updates_are_booked => updates_are_booked,
    crate::lifecycle::finalizers_hold_an_object => finalizers,
    crate::lifecycle::owners_take_dependents_along => owners,
    crate::lifecycle::namespaces_go_with_their_contents => namespaces,
    crate::lifecycle::deletion_heeds_preconditions => preconditions,
    crate::lists::selectors_choose => selectors,
    crate::lists::pages_show_one_snapshot => pages,
    crate::lists::tables_have_the_columns_of_the_definition => tables,
    crate::lists::watches_follow => watches,
    crate::lists::a_selection_is_entered_and_left => watch_selection,
    crate::lists::initial_events_end_with_a_bookmark => watch_list,
    crate::objects::discovery_names_the_kinds => discovery,
    crate::objects::create_read_update_delete => crud,
    crate::objects::errors_say_what_is_wrong => errors,
    crate::objects::generation_counts_changes_of_the_spec => generation,
    crate::objects::secrets_fold_their_texts => secrets,
    crate::objects::patches => patches,
    crate::objects::nothing_changed_is_nothing_written => no_op,
    crate::objects::dry_runs_leave_nothing => dry_run,
    crate::schemas::mistakes_are_refused_by_name => validation,
    crate::schemas::unknown_fields_are_pruned_warned_of_or_refused => unknown_fields,
    crate::schemas::defaults_are_filled_in => defaults,
    crate::schemas::rules_see_the_old_object => rules,
    crate::schemas::versions_are_served_side_by_side => versions,
}
