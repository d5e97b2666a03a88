"""The types of the contract, for native tests. Generated from wit/ by ostler-builder. DO NOT EDIT."""

from dataclasses import dataclass
from enum import Enum


class types:
    """Types of the interface `types`."""

    @dataclass
    class Gvk:
        group: object
        version: object
        kind: object

    @dataclass
    class ObjectRef:
        gvk: object
        cluster: object
        namespace: object
        name: object

    @dataclass
    class UpstreamRef:
        cluster: object
        namespace: object
        name: object

    @dataclass
    class SecretKeyRef:
        cluster: object
        namespace: object
        name: object
        key: object

    class Encoding(Enum):
        PLAIN = 0
        JSON_STRING = 1
        FORM = 2
        BASE64 = 3
        XML = 4

    @dataclass
    class Username_Literal:
        value: object

    @dataclass
    class Username_Secret:
        value: object

    @dataclass
    class BasicCredentials:
        username: object
        password: object

    @dataclass
    class SecretSource_Key:
        value: object

    @dataclass
    class SecretSource_Basic:
        value: object

    @dataclass
    class Substitution:
        placeholder: object
        source: object
        encoding: object

    class ConditionStatus(Enum):
        TRUE = 0
        FALSE = 1
        UNKNOWN = 2

    @dataclass
    class Condition:
        type: object
        status: object
        reason: object
        message: object

    @dataclass
    class NotReady:
        ref: object
        condition: object
        status: object
        exists: object
        reason: object
        message: object

    @dataclass
    class Error_Denied:
        value: object

    @dataclass
    class Error_NotFound:
        value: object

    @dataclass
    class Error_Conflict:
        value: object

    @dataclass
    class Error_Invalid:
        value: object

    @dataclass
    class Error_Throttled:
        value: object

    @dataclass
    class Error_Unavailable:
        value: object

    @dataclass
    class Error_NotReady:
        value: object

    @dataclass
    class Error_LimitExceeded:
        value: object

    @dataclass
    class Error_Unsupported:
        value: object

    @dataclass
    class HeaderValue_String:
        value: object

    @dataclass
    class HeaderValue_Bytes:
        value: object

    @dataclass
    class HeaderValue_Boolean:
        value: object

    @dataclass
    class HeaderValue_Integer:
        value: object

    @dataclass
    class HeaderValue_Float:
        value: object

    @dataclass
    class HeaderValue_Timestamp:
        value: object

    @dataclass
    class HeaderValue_Structure:
        value: object

    @dataclass
    class HeaderValue_Empty:
        pass

    @dataclass
    class MessageHeader:
        name: object
        value: object

    @dataclass
    class MessageProperties:
        content_type: object
        content_encoding: object
        headers: object
        persistent: object
        priority: object
        correlation_id: object
        reply_to: object
        expiration: object
        message_id: object
        timestamp: object
        type: object
        user_id: object
        app_id: object


class kubernetes:
    """Types of the interface `kubernetes`."""

    @dataclass
    class Projection_Full:
        pass

    @dataclass
    class Projection_Metadata:
        pass

    @dataclass
    class Projection_Fields:
        value: object

    @dataclass
    class GetOptions:
        live: object
        projection: object

    @dataclass
    class ListOptions:
        cluster: object
        namespace: object
        label_selector: object
        field_selector: object
        projection: object
        limit: object
        continue_token: object
        live: object

    @dataclass
    class Page:
        items: object
        continue_token: object

    @dataclass
    class ApplyOptions:
        cluster: object
        owned: object
        force: object
        substitutions: object

    @dataclass
    class CreateOptions:
        cluster: object
        owned: object
        substitutions: object

    @dataclass
    class Preconditions:
        uid: object
        resource_version: object

    class Propagation(Enum):
        BACKGROUND = 0
        FOREGROUND = 1
        ORPHAN = 2

    @dataclass
    class DeleteOptions:
        propagation: object
        preconditions: object

    @dataclass
    class LogOptions:
        container: object
        tail_lines: object
        previous: object


class references:
    """Types of the interface `references`."""


class permits:
    """Types of the interface `permits`."""


class http:
    """Types of the interface `http`."""

    class Method(Enum):
        GET = 0
        HEAD = 1
        OPTIONS = 2
        POST = 3
        PUT = 4
        PATCH = 5
        DELETE = 6

    @dataclass
    class Header:
        name: object
        value: object

    @dataclass
    class Request:
        upstream: object
        method: object
        path_and_query: object
        headers: object
        body: object
        substitutions: object
        timeout: object

    @dataclass
    class Response:
        status: object
        headers: object
        body: object

    @dataclass
    class DataMatch:
        pointer: object
        value: object

    @dataclass
    class EventMatch:
        name: object
        data: object

    @dataclass
    class Subscription:
        upstream: object
        path_and_query: object
        wake: object
        until: object

    @dataclass
    class Event:
        id: object
        name: object
        data: object

    @dataclass
    class EventQuery:
        upstream: object
        path_and_query: object
        select: object
        until: object
        max_events: object
        max_bytes: object
        timeout: object

    @dataclass
    class EventTail:
        events: object
        skipped: object
        complete: object


class messaging:
    """Types of the interface `messaging`."""

    @dataclass
    class Message:
        exchange: object
        routing_key: object
        properties: object
        body: object
        mandatory: object


class status:
    """Types of the interface `status`."""


class events:
    """Types of the interface `events`."""

    class EventType(Enum):
        NORMAL = 0
        WARNING = 1


class log:
    """Types of the interface `log`."""

    class Level(Enum):
        TRACE = 0
        DEBUG = 1
        INFO = 2
        WARN = 3
        ERROR = 4


class metrics:
    """Types of the interface `metrics`."""


class clock:
    """Types of the interface `clock`."""


class config:
    """Types of the interface `config`."""


class cache:
    """Types of the interface `cache`."""


class messages:
    """Types of the interface `messages`."""

    @dataclass
    class Delivery:
        broker: object
        queue: object
        exchange: object
        routing_key: object
        properties: object
        body: object
        delivery_count: object

    @dataclass
    class Disposition_Ack:
        pass

    @dataclass
    class Disposition_RetryAfter:
        value: object

    @dataclass
    class Disposition_Reject:
        value: object


class reconciler:
    """Types of the interface `reconciler`."""

    @dataclass
    class ReconciledKind:
        gvk: object
        finalizer: object
        label_selector: object
        phase: object

    @dataclass
    class Descriptor:
        name: object
        version: object
        kinds: object
        max_concurrent: object

    @dataclass
    class Request:
        object: object
        ref: object
        attempt: object
        causes: object

    @dataclass
    class Next_AwaitChange:
        pass

    @dataclass
    class Next_Poll:
        value: object

    @dataclass
    class Next_After:
        value: object

    @dataclass
    class Next_At:
        value: object

    @dataclass
    class Outcome:
        conditions: object
        status: object
        next: object

    @dataclass
    class Resolution_Retry:
        pass

    @dataclass
    class Resolution_Wait:
        pass

    @dataclass
    class Resolution_Terminal:
        pass

    @dataclass
    class Resolution_Throttled:
        value: object

    @dataclass
    class Resolution_Denied:
        value: object

    @dataclass
    class Failure:
        resolution: object
        reason: object
        message: object
        conditions: object
        status: object


class lifecycle:
    """Types of the interface `lifecycle`."""
