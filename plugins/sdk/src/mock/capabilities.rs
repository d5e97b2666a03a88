//! The capabilities of the simulated host, as a plugin calls them.

use ostler_readiness::{check_built_in, is_built_in_group};
use serde_json::Value;

use super::{
    DELETION_TIME, Key, MockHost,
    objects::{
        Selectors, add_finalizer, check_preconditions, format_cluster, format_reference, name_cluster,
        object_key, project_object,
    },
};
use crate::{
    ApplyOptions, Capabilities, ConditionStatus, CreateOptions, DeleteOptions, Error, Gvk, Level, LogOptions,
    Message, NotReady, ObjectRef, Preconditions, Propagation, SecretKeyRef, UpstreamRef,
    bindings::ostler::plugin::{
        events::EventType,
        http,
        kubernetes::{GetOptions, ListOptions, Page},
    },
    outcome::to_json_bytes,
};

impl Capabilities for MockHost {
    fn kubernetes_get(&self, reference: &ObjectRef, options: &GetOptions) -> Result<Option<Vec<u8>>, Error> {
        self.check_allowed("kubernetes.get")?;
        let is_hidden = !options.live && self.0.borrow().uncached.contains(&object_key(reference));
        let object = self.object(reference).filter(|_| !is_hidden);
        Ok(object.map(|object| to_json_bytes(&project_object(&object, &options.projection))))
    }

    fn kubernetes_list(&self, gvk: &Gvk, options: &ListOptions) -> Result<Page, Error> {
        self.check_allowed("kubernetes.list")?;
        let selectors = Selectors::parse(options)?;
        let state = self.0.borrow();
        let wanted = |(key, object): &(&Key, &Value)| {
            key.0 == gvk.group
                && key.1 == gvk.kind
                && (options.live || !state.uncached.contains(*key))
                && name_cluster(options.cluster.as_deref()) == key.4
                && options.namespace.as_ref().is_none_or(|ns| *ns == key.2)
                && selectors.select(object)
        };
        let items = state
            .objects
            .iter()
            .filter(wanted)
            .take(options.limit.map_or(usize::MAX, |limit| limit as usize))
            .map(|(_, object)| to_json_bytes(&project_object(object, &options.projection)));
        let items: Vec<_> = items.collect();
        drop(state);
        self.0.borrow_mut().listed_objects += items.len();
        // The mock has no pages: a limit selects the first objects, and no token continues.
        Ok(Page {
            items,
            continue_token: None,
        })
    }

    fn kubernetes_require_ready(&self, reference: &ObjectRef) -> Result<Vec<u8>, Error> {
        self.check_allowed("kubernetes.require-ready")?;
        let Gvk { group, kind, .. } = &reference.gvk;
        let object = self.object(reference);
        let Some(object) = object.filter(|_| is_built_in_group(group)) else {
            return self.require_condition(reference, "Ready", ConditionStatus::True);
        };
        match check_built_in(group, kind, &object) {
            Ok(()) => Ok(to_json_bytes(&object)),
            Err(cause) => Err(Error::NotReady(NotReady {
                ref_: reference.clone(),
                condition: "Ready".into(),
                status: ConditionStatus::True,
                exists: true,
                reason: cause.reason,
                message: cause.message,
            })),
        }
    }

    fn kubernetes_require_condition(
        &self,
        reference: &ObjectRef,
        kind: &str,
        status: ConditionStatus,
    ) -> Result<Vec<u8>, Error> {
        self.check_allowed("kubernetes.require-condition")?;
        self.require_condition(reference, kind, status)
    }

    fn kubernetes_apply(&self, object: &[u8], options: &ApplyOptions) -> Result<Vec<u8>, Error> {
        self.check_allowed("kubernetes.apply")?;
        self.record_substitutions(object, &options.substitutions);
        self.write_object("apply", object, options.cluster.as_deref(), options.owned)
    }

    fn kubernetes_create(&self, object: &[u8], options: &CreateOptions) -> Result<Vec<u8>, Error> {
        self.check_allowed("kubernetes.create")?;
        self.record_substitutions(object, &options.substitutions);
        self.write_object("create", object, options.cluster.as_deref(), options.owned)
    }

    fn kubernetes_patch(
        &self,
        reference: &ObjectRef,
        patch: &[u8],
        preconditions: &Preconditions,
    ) -> Result<Vec<u8>, Error> {
        self.check_allowed("kubernetes.patch")?;
        self.write_patch(reference, None, patch, preconditions)
    }

    fn kubernetes_patch_subresource(
        &self,
        reference: &ObjectRef,
        subresource: &str,
        patch: &[u8],
        preconditions: &Preconditions,
    ) -> Result<Vec<u8>, Error> {
        self.check_allowed("kubernetes.patch-subresource")?;
        self.write_patch(reference, Some(subresource), patch, preconditions)
    }

    fn kubernetes_read_log(&self, pod: &ObjectRef, options: &LogOptions) -> Result<String, Error> {
        self.check_allowed("kubernetes.read-log")?;
        if self.object(pod).is_none() {
            return Err(Error::NotFound(format!("Pod {} not found", pod.name)));
        }
        let state = self.0.borrow();
        let container = options.container.clone().unwrap_or_default();
        let Some(log) = state.container_logs.get(&(object_key(pod), container)) else {
            let message = format!("a container of pod {} is waiting to start", pod.name);
            return Err(Error::Invalid(message));
        };
        let lines: Vec<&str> = log.split_inclusive('\n').collect();
        let lines = &lines[lines.len().saturating_sub(options.tail_lines as usize)..];
        Ok(lines.concat())
    }

    fn kubernetes_delete(&self, reference: &ObjectRef, options: &DeleteOptions) -> Result<(), Error> {
        self.check_allowed("kubernetes.delete")?;
        if let Some(object) = self.object(reference) {
            check_preconditions(&object, &options.preconditions)?;
        }
        let mut state = self.0.borrow_mut();
        let key = object_key(reference);
        let Some(mut object) = state.objects.remove(&key) else {
            state.unlist_owned(reference, &key);
            return Ok(());
        };
        let is_deleted_before = !object["metadata"]["deletionTimestamp"].is_null();
        if options.propagation == Propagation::Foreground {
            if state.has_dependents(&object) {
                add_finalizer(&mut object, "foregroundDeletion");
            }
            let finalizers = object["metadata"]["finalizers"].as_array();
            if finalizers.is_some_and(|all| !all.is_empty()) {
                object["metadata"]["deletionTimestamp"] = DELETION_TIME.into();
                state.objects.insert(key.clone(), object);
            }
        }
        // One with finalizers stays listed until it is gone.
        if !state.objects.contains_key(&key) {
            state.unlist_owned(reference, &key);
        }
        if !is_deleted_before {
            let on = format_cluster(name_cluster(reference.cluster.as_deref()));
            let line = format!("delete {} {}{on}", reference.gvk.kind, reference.name);
            state.writes.push(line);
            state.count_effect();
        }
        Ok(())
    }

    fn references_hold(&self, reference: &ObjectRef) -> Result<(), Error> {
        self.check_allowed("references.hold")?;
        match self.object(reference) {
            None => return Err(Error::NotFound(format_reference(reference))),
            // One that is held already may be held on.
            Some(object)
                if !object["metadata"]["deletionTimestamp"].is_null()
                    && !self.0.borrow().held_before.contains(&format_reference(reference)) =>
            {
                return Err(Error::NotReady(NotReady {
                    ref_: reference.clone(),
                    condition: "Ready".into(),
                    status: ConditionStatus::True,
                    exists: true,
                    reason: String::new(),
                    message: "It is being deleted.".into(),
                }));
            }
            Some(_) => {}
        }
        self.0.borrow_mut().held.insert(format_reference(reference));
        Ok(())
    }

    fn references_list_holders(&self, reference: &ObjectRef) -> Result<Vec<ObjectRef>, Error> {
        self.check_allowed("references.list-holders")?;
        let state = self.0.borrow();
        Ok(state
            .holders
            .get(&format_reference(reference))
            .cloned()
            .unwrap_or_default())
    }

    fn permits_acquire(&self, pool: &str, limit: u32, held: bool) -> Result<bool, Error> {
        self.check_allowed("permits.acquire")?;
        let mut state = self.0.borrow_mut();
        let permit = state.permit_of(pool);
        let outside = state.used_permits.get(pool).copied().unwrap_or(0);
        let used = outside + state.permits.iter().filter(|(of, _)| of == pool).count();
        let is_granted = held || state.permits.contains(&permit) || used < limit as usize;
        if is_granted {
            state.permits.insert(permit.clone());
            state.requested_permits.insert(permit);
        }
        Ok(is_granted)
    }

    fn permits_release(&self, pool: &str) {
        let mut state = self.0.borrow_mut();
        let permit = state.permit_of(pool);
        state.permits.remove(&permit);
        state.requested_permits.remove(&permit);
    }

    fn http_send(&self, request: &http::Request) -> Result<http::Response, Error> {
        self.check_allowed("http.send")?;
        let mut state = self.0.borrow_mut();
        state.requests.push(request.clone());
        if request.method != http::Method::Get {
            state.count_effect();
        }
        let key = (request.method.as_str().to_owned(), request.path_and_query.clone());
        let Some(answers) = state.answers.get_mut(&key) else {
            let Some(server) = &state.server else {
                panic!("unexpected request: {} {}", key.0, key.1);
            };
            return server(request);
        };
        match answers.len() {
            0 => panic!("no response left for {} {}", key.0, key.1),
            1 => answers[0].clone(),
            _ => answers.pop_front().expect("not empty"),
        }
    }

    fn http_send_all(&self, requests: &[http::Request]) -> Vec<Result<http::Response, Error>> {
        requests.iter().map(|r| self.http_send(r)).collect()
    }

    fn http_secret_digest(&self, secret: &SecretKeyRef) -> Result<Option<String>, Error> {
        self.check_allowed("http.secret-digest")?;
        let key = (secret.name.clone(), secret.key.clone());
        Ok(self.0.borrow().secrets.get(&key).cloned())
    }

    fn http_subscribe(&self, subscription: &http::Subscription) -> Result<(), Error> {
        self.check_allowed("http.subscribe")?;
        let path = subscription.path_and_query.clone();
        self.0.borrow_mut().subscriptions.push(path);
        Ok(())
    }

    fn http_read_events(&self, query: &http::EventQuery) -> Result<http::EventTail, Error> {
        self.check_allowed("http.read-events")?;
        let state = self.0.borrow();
        let Some(events) = state.streams.get(&query.path_and_query) else {
            panic!("unexpected event stream: {}", query.path_and_query);
        };
        let returned = query.max_events.map_or(events.len(), |max| max as usize);
        let skipped = events.len().saturating_sub(returned);
        Ok(http::EventTail {
            events: events[skipped..].to_vec(),
            skipped: skipped as u64,
            complete: true,
        })
    }

    fn messaging_publish(&self, broker: &UpstreamRef, message: &Message) -> Result<(), Error> {
        self.check_allowed("messaging.publish")?;
        let message = (broker.name.clone(), message.clone());
        let mut state = self.0.borrow_mut();
        state.messages.push(message);
        state.count_effect();
        Ok(())
    }

    fn status_checkpoint(&self, fields: &[u8]) -> Result<(), Error> {
        self.check_allowed("status.checkpoint")?;
        let fields = serde_json::from_slice(fields).map_err(|error| Error::Invalid(error.to_string()))?;
        let mut state = self.0.borrow_mut();
        state.checkpoints.push(fields);
        state.count_effect();
        Ok(())
    }

    fn events_emit(&self, _: EventType, reason: &str, note: &str) {
        let event = (reason.to_owned(), note.to_owned());
        self.0.borrow_mut().events.push(event);
    }

    fn log_write(&self, _: Level, message: &str, _: &[(String, String)]) {
        self.0.borrow_mut().logs.push(message.to_owned());
    }

    fn metrics_counter(&self, _: &str, _: u64) {}

    fn metrics_gauge(&self, _: &str, _: f64) {}

    fn clock_now(&self) -> u64 {
        self.0.borrow().now
    }

    fn clock_remaining(&self) -> u64 {
        60_000
    }

    fn config_get(&self) -> Vec<u8> {
        to_json_bytes(&self.0.borrow().config)
    }

    fn cache_get_bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.0.borrow().cache.get(key).cloned()
    }

    fn cache_set_bytes(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let mut state = self.0.borrow_mut();
        state.cache.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn cache_delete_key(&self, key: &str) {
        self.0.borrow_mut().cache.remove(key);
    }
}
