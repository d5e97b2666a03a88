// Code generated from wit/ by ostler-builder. DO NOT EDIT.

//go:build wasip1

package wit

func loadGvk(p uint32) (v Gvk) {
	v.Group = loadString(p + 0)
	v.Version = loadString(p + 8)
	v.Kind = loadString(p + 16)
	return v
}

func storeGvk(p uint32, v Gvk) {
	storeString(p+0, v.Group)
	storeString(p+8, v.Version)
	storeString(p+16, v.Kind)
}

func loadOptionString(p uint32) (v *string) {
	if load[uint8](p) != 0 {
		some := loadString(p + 4)
		v = &some
	}
	return v
}

func storeOptionString(p uint32, v *string) {
	store(p, uint8(flag(v != nil)))
	if v != nil {
		storeString(p+4, *v)
	}
}

func loadObjectRef(p uint32) (v ObjectRef) {
	v.Gvk = loadGvk(p + 0)
	v.Cluster = loadOptionString(p + 24)
	v.Namespace = loadOptionString(p + 36)
	v.Name = loadString(p + 48)
	return v
}

func storeObjectRef(p uint32, v ObjectRef) {
	storeGvk(p+0, v.Gvk)
	storeOptionString(p+24, v.Cluster)
	storeOptionString(p+36, v.Namespace)
	storeString(p+48, v.Name)
}

func lowerListString(v []string) (uint32, uint32) {
	address := allocate(uint32(len(v))*8, 4)
	item := address
	for i := range v {
		storeString(item, v[i])
		item += 8
	}
	return address, uint32(len(v))
}

func loadListString(p uint32) (v []string) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadString(item))
		item += 8
	}
	return v
}

func storeListString(p uint32, v []string) {
	address, count := lowerListString(v)
	store(p, address)
	store(p+4, count)
}

func loadKubernetesGetOptions(p uint32) (v KubernetesGetOptions) {
	v.Live = load[uint8](p+0) != 0
	v.Fields = loadListString(p + 4)
	return v
}

func storeKubernetesGetOptions(p uint32, v KubernetesGetOptions) {
	store(uint32(p+0), uint8(flag(v.Live)))
	storeListString(p+4, v.Fields)
}

func loadOptionBytes(p uint32) (v *[]byte) {
	if load[uint8](p) != 0 {
		some := loadBytes(p + 4)
		v = &some
	}
	return v
}

func storeOptionBytes(p uint32, v *[]byte) {
	store(p, uint8(flag(v != nil)))
	if v != nil {
		storeBytes(p+4, *v)
	}
}

func loadNotReady(p uint32) (v NotReady) {
	v.Ref = loadObjectRef(p + 0)
	v.Exists = load[uint8](p+56) != 0
	v.Reason = loadString(p + 60)
	v.Message = loadString(p + 68)
	return v
}

func storeNotReady(p uint32, v NotReady) {
	storeObjectRef(p+0, v.Ref)
	store(uint32(p+56), uint8(flag(v.Exists)))
	storeString(p+60, v.Reason)
	storeString(p+68, v.Message)
}

func loadError(p uint32) (v Error) {
	v.Case = load[ErrorCase](p)
	switch v.Case {
	case ErrorDenied:
		v.Denied = loadString(p + 8)
	case ErrorNotFound:
		v.NotFound = loadString(p + 8)
	case ErrorConflict:
		v.Conflict = loadString(p + 8)
	case ErrorInvalid:
		v.Invalid = loadString(p + 8)
	case ErrorThrottled:
		v.Throttled = load[uint64](p + 8)
	case ErrorUnavailable:
		v.Unavailable = loadString(p + 8)
	case ErrorNotReady:
		v.NotReady = loadNotReady(p + 8)
	case ErrorBudget:
		v.Budget = loadString(p + 8)
	case ErrorUnsupported:
		v.Unsupported = loadString(p + 8)
	}
	return v
}

func storeError(p uint32, v Error) {
	store(p, v.Case)
	switch v.Case {
	case ErrorDenied:
		storeString(p+8, v.Denied)
	case ErrorNotFound:
		storeString(p+8, v.NotFound)
	case ErrorConflict:
		storeString(p+8, v.Conflict)
	case ErrorInvalid:
		storeString(p+8, v.Invalid)
	case ErrorThrottled:
		store(uint32(p+8), v.Throttled)
	case ErrorUnavailable:
		storeString(p+8, v.Unavailable)
	case ErrorNotReady:
		storeNotReady(p+8, v.NotReady)
	case ErrorBudget:
		storeString(p+8, v.Budget)
	case ErrorUnsupported:
		storeString(p+8, v.Unsupported)
	}
}

func loadResultOptionBytesOrError(p uint32) (v Result[*[]byte, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadOptionBytes(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultOptionBytesOrError(p uint32, v Result[*[]byte, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeOptionBytes(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 get
func hostKubernetesGet(a0 uint32, a1 uint32)

// KubernetesGet:
// One object; none when there is none. Errors: denied, invalid, unavailable, budget.
func KubernetesGet(ref ObjectRef, options KubernetesGetOptions) (*[]byte, *Error) {
	defer release()
	p := allocate(68, 4)
	storeObjectRef(p+0, ref)
	storeKubernetesGetOptions(p+56, options)
	answer := allocate(96, 8)
	hostKubernetesGet(p, answer)
	r := loadResultOptionBytesOrError(answer)
	return r.Ok, r.Err
}

func loadKubernetesListOptions(p uint32) (v KubernetesListOptions) {
	v.Cluster = loadOptionString(p + 0)
	v.Namespace = loadOptionString(p + 12)
	v.LabelSelector = loadOptionString(p + 24)
	v.FieldSelector = loadOptionString(p + 36)
	v.Fields = loadListString(p + 48)
	v.Limit = load[uint32](p + 56)
	v.ContinueToken = loadOptionString(p + 60)
	v.Live = load[uint8](p+72) != 0
	return v
}

func storeKubernetesListOptions(p uint32, v KubernetesListOptions) {
	storeOptionString(p+0, v.Cluster)
	storeOptionString(p+12, v.Namespace)
	storeOptionString(p+24, v.LabelSelector)
	storeOptionString(p+36, v.FieldSelector)
	storeListString(p+48, v.Fields)
	store(uint32(p+56), v.Limit)
	storeOptionString(p+60, v.ContinueToken)
	store(uint32(p+72), uint8(flag(v.Live)))
}

func lowerListBytes(v [][]byte) (uint32, uint32) {
	address := allocate(uint32(len(v))*8, 4)
	item := address
	for i := range v {
		storeBytes(item, v[i])
		item += 8
	}
	return address, uint32(len(v))
}

func loadListBytes(p uint32) (v [][]byte) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadBytes(item))
		item += 8
	}
	return v
}

func storeListBytes(p uint32, v [][]byte) {
	address, count := lowerListBytes(v)
	store(p, address)
	store(p+4, count)
}

func loadKubernetesPage(p uint32) (v KubernetesPage) {
	v.Items = loadListBytes(p + 0)
	v.ContinueToken = loadOptionString(p + 8)
	return v
}

func storeKubernetesPage(p uint32, v KubernetesPage) {
	storeListBytes(p+0, v.Items)
	storeOptionString(p+8, v.ContinueToken)
}

func loadResultKubernetesPageOrError(p uint32) (v Result[KubernetesPage, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadKubernetesPage(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultKubernetesPageOrError(p uint32, v Result[KubernetesPage, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeKubernetesPage(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 list
func hostKubernetesList(a0 uint32, a1 uint32)

// KubernetesList:
// Objects of a kind, ordered by namespace and name. Errors: as `get`.
func KubernetesList(gvk Gvk, options KubernetesListOptions) (KubernetesPage, *Error) {
	defer release()
	p := allocate(100, 4)
	storeGvk(p+0, gvk)
	storeKubernetesListOptions(p+24, options)
	answer := allocate(96, 8)
	hostKubernetesList(p, answer)
	r := loadResultKubernetesPageOrError(answer)
	return r.Ok, r.Err
}

func loadResultBytesOrError(p uint32) (v Result[[]byte, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadBytes(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultBytesOrError(p uint32, v Result[[]byte, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeBytes(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 require-ready
func hostKubernetesRequireReady(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32, a11 uint32, a12 uint32, a13 uint32, a14 uint32)

// KubernetesRequireReady:
// An object whose Ready condition is True for its current generation and
// which is not being deleted; otherwise `not-ready`, also when there is none.
func KubernetesRequireReady(ref ObjectRef) ([]byte, *Error) {
	defer release()
	address1, count2 := lowerString(ref.Gvk.Group)
	address3, count4 := lowerString(ref.Gvk.Version)
	address5, count6 := lowerString(ref.Gvk.Kind)
	var some9 uint32
	var flat10 uint32
	var flat11 uint32
	if ref.Cluster != nil {
		some9 = 1
		address7, count8 := lowerString((*ref.Cluster))
		flat10 = address7
		flat11 = count8
	}
	var some14 uint32
	var flat15 uint32
	var flat16 uint32
	if ref.Namespace != nil {
		some14 = 1
		address12, count13 := lowerString((*ref.Namespace))
		flat15 = address12
		flat16 = count13
	}
	address17, count18 := lowerString(ref.Name)
	answer := allocate(96, 8)
	hostKubernetesRequireReady(address1, count2, address3, count4, address5, count6, some9, flat10, flat11, some14, flat15, flat16, address17, count18, answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 apply
func hostKubernetesApply(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// KubernetesApply:
// Server-side apply of the fields given; the field manager is the plugin's.
// Suppressed when it would change nothing. Gives the object as it is then.
// Errors: denied, conflict (with the other manager), invalid, unavailable, budget.
func KubernetesApply(object []byte, options KubernetesWriteOptions) ([]byte, *Error) {
	defer release()
	address19, count20 := lowerBytes(object)
	answer := allocate(96, 8)
	hostKubernetesApply(address19, count20, flag(options.Owned), flag(options.Force), answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 create
func hostKubernetesCreate(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// KubernetesCreate:
// Creates; `conflict` when it is there already. `force` has no meaning.
func KubernetesCreate(object []byte, options KubernetesWriteOptions) ([]byte, *Error) {
	defer release()
	address21, count22 := lowerBytes(object)
	answer := allocate(96, 8)
	hostKubernetesCreate(address21, count22, flag(options.Owned), flag(options.Force), answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

func loadKubernetesDeleteOptions(p uint32) (v KubernetesDeleteOptions) {
	v.Propagation = loadOptionString(p + 0)
	v.Uid = loadOptionString(p + 12)
	return v
}

func storeKubernetesDeleteOptions(p uint32, v KubernetesDeleteOptions) {
	storeOptionString(p+0, v.Propagation)
	storeOptionString(p+12, v.Uid)
}

func loadResultUnitOrError(p uint32) (v Result[Unit, Error]) {
	if load[uint8](p) == 0 {

	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultUnitOrError(p uint32, v Result[Unit, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {

	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 delete
func hostKubernetesDelete(a0 uint32, a1 uint32)

// KubernetesDelete:
// Deletes; an object that is gone already is no error. Errors: denied, conflict, unavailable, budget.
func KubernetesDelete(ref ObjectRef, options KubernetesDeleteOptions) *Error {
	defer release()
	p := allocate(80, 4)
	storeObjectRef(p+0, ref)
	storeKubernetesDeleteOptions(p+56, options)
	answer := allocate(96, 8)
	hostKubernetesDelete(p, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

//go:wasmimport ostler:plugin/references@0.1.0 hold
func hostReferencesHold(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32, a11 uint32, a12 uint32, a13 uint32, a14 uint32)

// ReferencesHold:
// Holds an object for as long as this one uses it. The set is declared
// afresh in each reconcile: what is not held again is let go. The host
// keeps the finalizers that encode it. Errors: denied, not-found, unsupported.
func ReferencesHold(ref ObjectRef) *Error {
	defer release()
	address23, count24 := lowerString(ref.Gvk.Group)
	address25, count26 := lowerString(ref.Gvk.Version)
	address27, count28 := lowerString(ref.Gvk.Kind)
	var some31 uint32
	var flat32 uint32
	var flat33 uint32
	if ref.Cluster != nil {
		some31 = 1
		address29, count30 := lowerString((*ref.Cluster))
		flat32 = address29
		flat33 = count30
	}
	var some36 uint32
	var flat37 uint32
	var flat38 uint32
	if ref.Namespace != nil {
		some36 = 1
		address34, count35 := lowerString((*ref.Namespace))
		flat37 = address34
		flat38 = count35
	}
	address39, count40 := lowerString(ref.Name)
	answer := allocate(96, 8)
	hostReferencesHold(address23, count24, address25, count26, address27, count28, some31, flat32, flat33, some36, flat37, flat38, address39, count40, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

func loadHttpUpstream(p uint32) (v HttpUpstream) {
	v.Namespace = loadOptionString(p + 0)
	v.Name = loadString(p + 12)
	return v
}

func storeHttpUpstream(p uint32, v HttpUpstream) {
	storeOptionString(p+0, v.Namespace)
	storeString(p+12, v.Name)
}

func loadHttpHeader(p uint32) (v HttpHeader) {
	v.Name = loadString(p + 0)
	v.Value = loadString(p + 8)
	return v
}

func storeHttpHeader(p uint32, v HttpHeader) {
	storeString(p+0, v.Name)
	storeString(p+8, v.Value)
}

func lowerListHttpHeader(v []HttpHeader) (uint32, uint32) {
	address := allocate(uint32(len(v))*16, 4)
	item := address
	for i := range v {
		storeHttpHeader(item, v[i])
		item += 16
	}
	return address, uint32(len(v))
}

func loadListHttpHeader(p uint32) (v []HttpHeader) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadHttpHeader(item))
		item += 16
	}
	return v
}

func storeListHttpHeader(p uint32, v []HttpHeader) {
	address, count := lowerListHttpHeader(v)
	store(p, address)
	store(p+4, count)
}

func loadHttpEncoding(p uint32) (v HttpEncoding) {
	v = load[HttpEncoding](p)
	return v
}

func storeHttpEncoding(p uint32, v HttpEncoding) {
	store(p, v)
}

func loadHttpSubstitution(p uint32) (v HttpSubstitution) {
	v.Placeholder = loadString(p + 0)
	v.Namespace = loadOptionString(p + 8)
	v.Secret = loadString(p + 20)
	v.Key = loadString(p + 28)
	v.Encoding = loadHttpEncoding(p + 36)
	return v
}

func storeHttpSubstitution(p uint32, v HttpSubstitution) {
	storeString(p+0, v.Placeholder)
	storeOptionString(p+8, v.Namespace)
	storeString(p+20, v.Secret)
	storeString(p+28, v.Key)
	storeHttpEncoding(p+36, v.Encoding)
}

func lowerListHttpSubstitution(v []HttpSubstitution) (uint32, uint32) {
	address := allocate(uint32(len(v))*40, 4)
	item := address
	for i := range v {
		storeHttpSubstitution(item, v[i])
		item += 40
	}
	return address, uint32(len(v))
}

func loadListHttpSubstitution(p uint32) (v []HttpSubstitution) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadHttpSubstitution(item))
		item += 40
	}
	return v
}

func storeListHttpSubstitution(p uint32, v []HttpSubstitution) {
	address, count := lowerListHttpSubstitution(v)
	store(p, address)
	store(p+4, count)
}

func loadHttpRequest(p uint32) (v HttpRequest) {
	v.Upstream = loadHttpUpstream(p + 0)
	v.Method = loadString(p + 20)
	v.PathAndQuery = loadString(p + 28)
	v.Headers = loadListHttpHeader(p + 36)
	v.Body = loadOptionBytes(p + 44)
	v.Substitutions = loadListHttpSubstitution(p + 56)
	v.Timeout = load[uint32](p + 64)
	return v
}

func storeHttpRequest(p uint32, v HttpRequest) {
	storeHttpUpstream(p+0, v.Upstream)
	storeString(p+20, v.Method)
	storeString(p+28, v.PathAndQuery)
	storeListHttpHeader(p+36, v.Headers)
	storeOptionBytes(p+44, v.Body)
	storeListHttpSubstitution(p+56, v.Substitutions)
	store(uint32(p+64), v.Timeout)
}

func loadHttpResponse(p uint32) (v HttpResponse) {
	v.Status = load[uint16](p + 0)
	v.Headers = loadListHttpHeader(p + 4)
	v.Body = loadBytes(p + 12)
	return v
}

func storeHttpResponse(p uint32, v HttpResponse) {
	store(uint32(p+0), v.Status)
	storeListHttpHeader(p+4, v.Headers)
	storeBytes(p+12, v.Body)
}

func loadResultHttpResponseOrError(p uint32) (v Result[HttpResponse, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadHttpResponse(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultHttpResponseOrError(p uint32, v Result[HttpResponse, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeHttpResponse(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/http@0.1.0 send
func hostHttpSend(a0 uint32, a1 uint32)

// HttpSend:
// Sends one request. Any HTTP status is an answer, not an error; a 401 is
// tried once more after a fresh login. A login that is refused is answered
// with status 401 and a text that says why. Redirects are not followed. Errors:
// denied, not-found (upstream or secret), invalid, throttled, unavailable, budget.
// A GET with `Cache-Control: max-age=N`, without body and substitutions, is
// answered with what the upstream said to such a one (same path and other headers)
// up to N seconds ago, if that was a 200: one request serves all objects, whoever
// of them comes first. Any other answer and an error serve those who waited for it.
// The credentials, what they are made of, and the substituted secrets with their
// former values are masked in an answer, as far as the host has come to know them
// since it started; of the credentials' passwords those of 8 characters or more.
func HttpSend(request HttpRequest) (HttpResponse, *Error) {
	defer release()
	p := allocate(68, 4)
	storeHttpRequest(p+0, request)
	answer := allocate(96, 8)
	hostHttpSend(p, answer)
	r := loadResultHttpResponseOrError(answer)
	return r.Ok, r.Err
}

func lowerListHttpRequest(v []HttpRequest) (uint32, uint32) {
	address := allocate(uint32(len(v))*68, 4)
	item := address
	for i := range v {
		storeHttpRequest(item, v[i])
		item += 68
	}
	return address, uint32(len(v))
}

func loadListHttpRequest(p uint32) (v []HttpRequest) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadHttpRequest(item))
		item += 68
	}
	return v
}

func storeListHttpRequest(p uint32, v []HttpRequest) {
	address, count := lowerListHttpRequest(v)
	store(p, address)
	store(p+4, count)
}

func lowerListResultHttpResponseOrError(v []Result[HttpResponse, Error]) (uint32, uint32) {
	address := allocate(uint32(len(v))*96, 8)
	item := address
	for i := range v {
		storeResultHttpResponseOrError(item, v[i])
		item += 96
	}
	return address, uint32(len(v))
}

func loadListResultHttpResponseOrError(p uint32) (v []Result[HttpResponse, Error]) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadResultHttpResponseOrError(item))
		item += 96
	}
	return v
}

func storeListResultHttpResponseOrError(p uint32, v []Result[HttpResponse, Error]) {
	address, count := lowerListResultHttpResponseOrError(v)
	store(p, address)
	store(p+4, count)
}

//go:wasmimport ostler:plugin/http@0.1.0 send-all
func hostHttpSendAll(a0 uint32, a1 uint32, a2 uint32)

// HttpSendAll:
// Sends them side by side within the upstream's limits; answers in order. More
// than 64 are not sent: each is answered with `budget`.
func HttpSendAll(requests []HttpRequest) []Result[HttpResponse, Error] {
	defer release()
	address41, count42 := lowerListHttpRequest(requests)
	answer := allocate(8, 4)
	hostHttpSendAll(address41, count42, answer)
	r := loadListResultHttpResponseOrError(answer)
	return r
}

func loadResultOptionStringOrError(p uint32) (v Result[*string, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadOptionString(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultOptionStringOrError(p uint32, v Result[*string, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeOptionString(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/http@0.1.0 secret-digest
func hostHttpSecretDigest(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32)

// HttpSecretDigest:
// A digest of a Secret's key that changes when the value does and tells
// nothing about it; for noticing a rotation. None when there is no such key.
func HttpSecretDigest(namespace *string, secret string, key string) (*string, *Error) {
	defer release()
	var some45 uint32
	var flat46 uint32
	var flat47 uint32
	if namespace != nil {
		some45 = 1
		address43, count44 := lowerString((*namespace))
		flat46 = address43
		flat47 = count44
	}
	address48, count49 := lowerString(secret)
	address50, count51 := lowerString(key)
	answer := allocate(96, 8)
	hostHttpSecretDigest(some45, flat46, flat47, address48, count49, address50, count51, answer)
	r := loadResultOptionStringOrError(answer)
	return r.Ok, r.Err
}

func loadTupleStringString(p uint32) (v struct {
	F0 string
	F1 string
}) {
	v.F0 = loadString(p + 0)
	v.F1 = loadString(p + 8)
	return v
}

func storeTupleStringString(p uint32, v struct {
	F0 string
	F1 string
}) {
	storeString(p+0, v.F0)
	storeString(p+8, v.F1)
}

func loadOptionTupleStringString(p uint32) (v *struct {
	F0 string
	F1 string
}) {
	if load[uint8](p) != 0 {
		some := loadTupleStringString(p + 4)
		v = &some
	}
	return v
}

func storeOptionTupleStringString(p uint32, v *struct {
	F0 string
	F1 string
}) {
	store(p, uint8(flag(v != nil)))
	if v != nil {
		storeTupleStringString(p+4, *v)
	}
}

func loadHttpEventMatch(p uint32) (v HttpEventMatch) {
	v.Name = loadOptionString(p + 0)
	v.Data = loadOptionTupleStringString(p + 12)
	return v
}

func storeHttpEventMatch(p uint32, v HttpEventMatch) {
	storeOptionString(p+0, v.Name)
	storeOptionTupleStringString(p+12, v.Data)
}

func lowerListHttpEventMatch(v []HttpEventMatch) (uint32, uint32) {
	address := allocate(uint32(len(v))*32, 4)
	item := address
	for i := range v {
		storeHttpEventMatch(item, v[i])
		item += 32
	}
	return address, uint32(len(v))
}

func loadListHttpEventMatch(p uint32) (v []HttpEventMatch) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadHttpEventMatch(item))
		item += 32
	}
	return v
}

func storeListHttpEventMatch(p uint32, v []HttpEventMatch) {
	address, count := lowerListHttpEventMatch(v)
	store(p, address)
	store(p+4, count)
}

//go:wasmimport ostler:plugin/http@0.1.0 subscribe
func hostHttpSubscribe(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32, a11 uint32)

// HttpSubscribe:
// Keeps an event stream (server-sent events) open on behalf of the object,
// whose events wake it. One connection per upstream and path serves all
// objects; it is opened again with back-off, after the last event where the
// server gives ids. Whenever something may have been missed, the first time
// included, the object is woken once: subscribe first, then read. Ends when a
// reconcile that succeeds doesn't subscribe again, with the object, or with
// this host's leading. Needs the grant of a GET. Errors: denied, not-found,
// invalid, unavailable (also when the upstream has too many streams).
func HttpSubscribe(subscription HttpSubscription) *Error {
	defer release()
	var some54 uint32
	var flat55 uint32
	var flat56 uint32
	if subscription.Upstream.Namespace != nil {
		some54 = 1
		address52, count53 := lowerString((*subscription.Upstream.Namespace))
		flat55 = address52
		flat56 = count53
	}
	address57, count58 := lowerString(subscription.Upstream.Name)
	address59, count60 := lowerString(subscription.PathAndQuery)
	address61, count62 := lowerListHttpEventMatch(subscription.Wake)
	address63, count64 := lowerListHttpEventMatch(subscription.Until)
	answer := allocate(96, 8)
	hostHttpSubscribe(some54, flat55, flat56, address57, count58, address59, count60, address61, count62, address63, count64, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

func loadHttpEvent(p uint32) (v HttpEvent) {
	v.Id = loadOptionString(p + 0)
	v.Name = loadString(p + 12)
	v.Data = loadString(p + 20)
	return v
}

func storeHttpEvent(p uint32, v HttpEvent) {
	storeOptionString(p+0, v.Id)
	storeString(p+12, v.Name)
	storeString(p+20, v.Data)
}

func lowerListHttpEvent(v []HttpEvent) (uint32, uint32) {
	address := allocate(uint32(len(v))*28, 4)
	item := address
	for i := range v {
		storeHttpEvent(item, v[i])
		item += 28
	}
	return address, uint32(len(v))
}

func loadListHttpEvent(p uint32) (v []HttpEvent) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadHttpEvent(item))
		item += 28
	}
	return v
}

func storeListHttpEvent(p uint32, v []HttpEvent) {
	address, count := lowerListHttpEvent(v)
	store(p, address)
	store(p+4, count)
}

func loadHttpEventTail(p uint32) (v HttpEventTail) {
	v.Events = loadListHttpEvent(p + 0)
	v.Skipped = load[uint64](p + 8)
	v.Complete = load[uint8](p+16) != 0
	return v
}

func storeHttpEventTail(p uint32, v HttpEventTail) {
	storeListHttpEvent(p+0, v.Events)
	store(uint32(p+8), v.Skipped)
	store(uint32(p+16), uint8(flag(v.Complete)))
}

func loadResultHttpEventTailOrError(p uint32) (v Result[HttpEventTail, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadHttpEventTail(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultHttpEventTailOrError(p uint32, v Result[HttpEventTail, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeHttpEventTail(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/http@0.1.0 read-events
func hostHttpReadEvents(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32, a11 uint32, a12 uint32, a13 uint32, a14 uint32)

// HttpReadEvents:
// Reads an event stream through to its end and gives the last events of it;
// the host keeps no more than these. Secrets that it has put into requests since
// it started, and the credentials, are masked, but not one that is split over two
// events. While it reads it is one of the upstream's requests in flight. Wakes
// nobody. Errors: denied, not-found, invalid, throttled, unavailable.
func HttpReadEvents(query HttpEventQuery) (HttpEventTail, *Error) {
	defer release()
	var some67 uint32
	var flat68 uint32
	var flat69 uint32
	if query.Upstream.Namespace != nil {
		some67 = 1
		address65, count66 := lowerString((*query.Upstream.Namespace))
		flat68 = address65
		flat69 = count66
	}
	address70, count71 := lowerString(query.Upstream.Name)
	address72, count73 := lowerString(query.PathAndQuery)
	address74, count75 := lowerListHttpEventMatch(query.Select)
	address76, count77 := lowerListHttpEventMatch(query.Until)
	answer := allocate(96, 8)
	hostHttpReadEvents(some67, flat68, flat69, address70, count71, address72, count73, address74, count75, address76, count77, uint32(query.Last), uint32(query.Bytes), uint32(query.Timeout), answer)
	r := loadResultHttpEventTailOrError(answer)
	return r.Ok, r.Err
}

func lowerListTupleStringString(v []struct {
	F0 string
	F1 string
}) (uint32, uint32) {
	address := allocate(uint32(len(v))*16, 4)
	item := address
	for i := range v {
		storeTupleStringString(item, v[i])
		item += 16
	}
	return address, uint32(len(v))
}

func loadListTupleStringString(p uint32) (v []struct {
	F0 string
	F1 string
}) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadTupleStringString(item))
		item += 16
	}
	return v
}

func storeListTupleStringString(p uint32, v []struct {
	F0 string
	F1 string
}) {
	address, count := lowerListTupleStringString(v)
	store(p, address)
	store(p+4, count)
}

//go:wasmimport ostler:plugin/messaging@0.1.0 publish
func hostMessagingPublish(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32, a11 uint32, a12 uint32, a13 uint32, a14 uint32)

// MessagingPublish:
// Publishes and waits for the broker's confirmation. Errors: denied,
// not-found (broker), throttled, unavailable, unsupported.
func MessagingPublish(broker string, message MessagingMessage) *Error {
	defer release()
	address78, count79 := lowerString(broker)
	address80, count81 := lowerString(message.Exchange)
	address82, count83 := lowerString(message.RoutingKey)
	address84, count85 := lowerListTupleStringString(message.Headers)
	var some88 uint32
	var flat89 uint32
	var flat90 uint32
	if message.ContentType != nil {
		some88 = 1
		address86, count87 := lowerString((*message.ContentType))
		flat89 = address86
		flat90 = count87
	}
	address91, count92 := lowerBytes(message.Body)
	answer := allocate(96, 8)
	hostMessagingPublish(address78, count79, address80, count81, address82, count83, address84, count85, some88, flat89, flat90, address91, count92, flag(message.Persistent), answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

//go:wasmimport ostler:plugin/status@0.1.0 checkpoint
func hostStatusCheckpoint(a0 uint32, a1 uint32, a2 uint32)

// StatusCheckpoint:
// Writes these status fields now, merged into the status, before an effect
// that must happen once. The reconcile may go on when it has succeeded.
// Errors: conflict, invalid, unavailable, budget.
func StatusCheckpoint(fields []byte) *Error {
	defer release()
	address93, count94 := lowerBytes(fields)
	answer := allocate(96, 8)
	hostStatusCheckpoint(address93, count94, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

//go:wasmimport ostler:plugin/events@0.1.0 emit
func hostEventsEmit(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// EventsEmit:
// `reason` is CamelCase, `note` one sentence, never a secret. Never fails:
// an event that can't be written is counted and dropped.
func EventsEmit(type_ EventsEventType, reason string, note string) {
	defer release()
	address95, count96 := lowerString(reason)
	address97, count98 := lowerString(note)
	hostEventsEmit(uint32(type_), address95, count96, address97, count98)
}

//go:wasmimport ostler:plugin/log@0.1.0 write
func hostLogWrite(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// LogWrite:
// Writes one line. Fields are key and value.
func LogWrite(level LogLevel, message string, fields []struct {
	F0 string
	F1 string
}) {
	defer release()
	address99, count100 := lowerString(message)
	address101, count102 := lowerListTupleStringString(fields)
	hostLogWrite(uint32(level), address99, count100, address101, count102)
}

//go:wasmimport ostler:plugin/metrics@0.1.0 counter
func hostMetricsCounter(a0 uint32, a1 uint32, a2 uint64)

// MetricsCounter:
// Adds to a counter. Names are `[a-z][a-z0-9_]*`; others are dropped.
func MetricsCounter(name string, delta uint64) {
	defer release()
	address103, count104 := lowerString(name)
	hostMetricsCounter(address103, count104, delta)
}

//go:wasmimport ostler:plugin/metrics@0.1.0 gauge
func hostMetricsGauge(a0 uint32, a1 uint32, a2 float64)

// MetricsGauge:
// Sets a gauge.
func MetricsGauge(name string, value float64) {
	defer release()
	address105, count106 := lowerString(name)
	hostMetricsGauge(address105, count106, value)
}

//go:wasmimport ostler:plugin/clock@0.1.0 now
func hostClockNow() uint64

// ClockNow:
// Milliseconds since the Unix epoch.
func ClockNow() uint64 {
	defer release()
	r := uint64(hostClockNow())
	return r
}

//go:wasmimport ostler:plugin/clock@0.1.0 remaining
func hostClockRemaining() uint64

// ClockRemaining:
// Milliseconds left for this call, 0 when the host is draining: end early.
func ClockRemaining() uint64 {
	defer release()
	r := uint64(hostClockRemaining())
	return r
}

//go:wasmimport ostler:plugin/config@0.1.0 get
func hostConfigGet(a0 uint32)

// ConfigGet:
// One JSON object, `{}` without a configuration.
func ConfigGet() []byte {
	defer release()
	answer := allocate(8, 4)
	hostConfigGet(answer)
	r := loadBytes(answer)
	return r
}

//go:wasmimport ostler:plugin/memo@0.1.0 get
func hostMemoGet(a0 uint32, a1 uint32, a2 uint32)

// MemoGet is of the contract.
func MemoGet(key string) *[]byte {
	defer release()
	address107, count108 := lowerString(key)
	answer := allocate(12, 4)
	hostMemoGet(address107, count108, answer)
	r := loadOptionBytes(answer)
	return r
}

//go:wasmimport ostler:plugin/memo@0.1.0 put
func hostMemoPut(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// MemoPut:
// Errors: budget (with the limit in bytes).
func MemoPut(key string, value []byte) *Error {
	defer release()
	address109, count110 := lowerString(key)
	address111, count112 := lowerBytes(value)
	answer := allocate(96, 8)
	hostMemoPut(address109, count110, address111, count112, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

//go:wasmimport ostler:plugin/memo@0.1.0 remove
func hostMemoRemove(a0 uint32, a1 uint32)

// MemoRemove is of the contract.
func MemoRemove(key string) {
	defer release()
	address113, count114 := lowerString(key)
	hostMemoRemove(address113, count114)
}

func loadReconcilerReconciledKind(p uint32) (v ReconcilerReconciledKind) {
	v.Gvk = loadGvk(p + 0)
	v.Finalizer = loadOptionString(p + 24)
	v.LabelSelector = loadOptionString(p + 36)
	v.Phase = load[uint8](p+48) != 0
	return v
}

func storeReconcilerReconciledKind(p uint32, v ReconcilerReconciledKind) {
	storeGvk(p+0, v.Gvk)
	storeOptionString(p+24, v.Finalizer)
	storeOptionString(p+36, v.LabelSelector)
	store(uint32(p+48), uint8(flag(v.Phase)))
}

func lowerListReconcilerReconciledKind(v []ReconcilerReconciledKind) (uint32, uint32) {
	address := allocate(uint32(len(v))*52, 4)
	item := address
	for i := range v {
		storeReconcilerReconciledKind(item, v[i])
		item += 52
	}
	return address, uint32(len(v))
}

func loadListReconcilerReconciledKind(p uint32) (v []ReconcilerReconciledKind) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadReconcilerReconciledKind(item))
		item += 52
	}
	return v
}

func storeListReconcilerReconciledKind(p uint32, v []ReconcilerReconciledKind) {
	address, count := lowerListReconcilerReconciledKind(v)
	store(p, address)
	store(p+4, count)
}

func loadReconcilerDescriptor(p uint32) (v ReconcilerDescriptor) {
	v.Name = loadString(p + 0)
	v.Version = loadString(p + 8)
	v.Kinds = loadListReconcilerReconciledKind(p + 16)
	v.MaxConcurrent = load[uint32](p + 24)
	return v
}

func storeReconcilerDescriptor(p uint32, v ReconcilerDescriptor) {
	storeString(p+0, v.Name)
	storeString(p+8, v.Version)
	storeListReconcilerReconciledKind(p+16, v.Kinds)
	store(uint32(p+24), v.MaxConcurrent)
}

//go:wasmexport ostler:plugin/reconciler@0.1.0#describe
func exportReconcilerDescribe() uint32 {
	release()
	result := ReconcilerExports.Describe()
	answer := allocate(28, 4)
	storeReconcilerDescriptor(answer, result)
	return answer
}

//go:wasmexport cabi_post_ostler:plugin/reconciler@0.1.0#describe
func postReconcilerDescribe(uint32) { release() }

func loadReconcilerRequest(p uint32) (v ReconcilerRequest) {
	v.Object = loadBytes(p + 0)
	v.Ref = loadObjectRef(p + 8)
	v.Attempt = load[uint32](p + 64)
	v.Causes = loadListString(p + 68)
	return v
}

func storeReconcilerRequest(p uint32, v ReconcilerRequest) {
	storeBytes(p+0, v.Object)
	storeObjectRef(p+8, v.Ref)
	store(uint32(p+64), v.Attempt)
	storeListString(p+68, v.Causes)
}

func loadTriState(p uint32) (v TriState) {
	v = load[TriState](p)
	return v
}

func storeTriState(p uint32, v TriState) {
	store(p, v)
}

func loadCondition(p uint32) (v Condition) {
	v.Type = loadString(p + 0)
	v.Status = loadTriState(p + 8)
	v.Reason = loadString(p + 12)
	v.Message = loadString(p + 20)
	return v
}

func storeCondition(p uint32, v Condition) {
	storeString(p+0, v.Type)
	storeTriState(p+8, v.Status)
	storeString(p+12, v.Reason)
	storeString(p+20, v.Message)
}

func lowerListCondition(v []Condition) (uint32, uint32) {
	address := allocate(uint32(len(v))*28, 4)
	item := address
	for i := range v {
		storeCondition(item, v[i])
		item += 28
	}
	return address, uint32(len(v))
}

func loadListCondition(p uint32) (v []Condition) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadCondition(item))
		item += 28
	}
	return v
}

func storeListCondition(p uint32, v []Condition) {
	address, count := lowerListCondition(v)
	store(p, address)
	store(p+4, count)
}

func loadOptionUint64(p uint32) (v *uint64) {
	if load[uint8](p) != 0 {
		some := load[uint64](p + 8)
		v = &some
	}
	return v
}

func storeOptionUint64(p uint32, v *uint64) {
	store(p, uint8(flag(v != nil)))
	if v != nil {
		store(uint32(p+8), *v)
	}
}

func loadReconcilerNext(p uint32) (v ReconcilerNext) {
	v.Case = load[ReconcilerNextCase](p)
	switch v.Case {
	case ReconcilerNextPoll:
		v.Poll = loadOptionUint64(p + 8)
	case ReconcilerNextAfter:
		v.After = load[uint64](p + 8)
	case ReconcilerNextAt:
		v.At = load[uint64](p + 8)
	}
	return v
}

func storeReconcilerNext(p uint32, v ReconcilerNext) {
	store(p, v.Case)
	switch v.Case {
	case ReconcilerNextPoll:
		storeOptionUint64(p+8, v.Poll)
	case ReconcilerNextAfter:
		store(uint32(p+8), v.After)
	case ReconcilerNextAt:
		store(uint32(p+8), v.At)
	}
}

func loadReconcilerOutcome(p uint32) (v ReconcilerOutcome) {
	v.Conditions = loadListCondition(p + 0)
	v.Status = loadOptionBytes(p + 8)
	v.Next = loadReconcilerNext(p + 24)
	return v
}

func storeReconcilerOutcome(p uint32, v ReconcilerOutcome) {
	storeListCondition(p+0, v.Conditions)
	storeOptionBytes(p+8, v.Status)
	storeReconcilerNext(p+24, v.Next)
}

func loadReconcilerResolution(p uint32) (v ReconcilerResolution) {
	v.Case = load[ReconcilerResolutionCase](p)
	switch v.Case {
	case ReconcilerResolutionThrottled:
		v.Throttled = load[uint64](p + 8)
	case ReconcilerResolutionDenied:
		v.Denied = loadString(p + 8)
	}
	return v
}

func storeReconcilerResolution(p uint32, v ReconcilerResolution) {
	store(p, v.Case)
	switch v.Case {
	case ReconcilerResolutionThrottled:
		store(uint32(p+8), v.Throttled)
	case ReconcilerResolutionDenied:
		storeString(p+8, v.Denied)
	}
}

func loadReconcilerFailure(p uint32) (v ReconcilerFailure) {
	v.Resolution = loadReconcilerResolution(p + 0)
	v.Reason = loadString(p + 16)
	v.Message = loadString(p + 24)
	v.Conditions = loadListCondition(p + 32)
	v.Status = loadOptionBytes(p + 40)
	return v
}

func storeReconcilerFailure(p uint32, v ReconcilerFailure) {
	storeReconcilerResolution(p+0, v.Resolution)
	storeString(p+16, v.Reason)
	storeString(p+24, v.Message)
	storeListCondition(p+32, v.Conditions)
	storeOptionBytes(p+40, v.Status)
}

func loadResultReconcilerOutcomeOrReconcilerFailure(p uint32) (v Result[ReconcilerOutcome, ReconcilerFailure]) {
	if load[uint8](p) == 0 {
		v.Ok = loadReconcilerOutcome(p + 8)
	} else {
		failed := loadReconcilerFailure(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultReconcilerOutcomeOrReconcilerFailure(p uint32, v Result[ReconcilerOutcome, ReconcilerFailure]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeReconcilerOutcome(p+8, v.Ok)
	} else {
		storeReconcilerFailure(p+8, *v.Err)
	}
}

//go:wasmexport ostler:plugin/reconciler@0.1.0#reconcile
func exportReconcilerReconcile(p uint32) uint32 {
	request := loadReconcilerRequest(p + 0)
	release()
	result := ReconcilerExports.Reconcile(request)
	answer := allocate(64, 8)
	storeResultReconcilerOutcomeOrReconcilerFailure(answer, result)
	return answer
}

//go:wasmexport cabi_post_ostler:plugin/reconciler@0.1.0#reconcile
func postReconcilerReconcile(uint32) { release() }

//go:wasmexport ostler:plugin/reconciler@0.1.0#cleanup
func exportReconcilerCleanup(p uint32) uint32 {
	request := loadReconcilerRequest(p + 0)
	release()
	result := ReconcilerExports.Cleanup(request)
	answer := allocate(64, 8)
	storeResultReconcilerOutcomeOrReconcilerFailure(answer, result)
	return answer
}

//go:wasmexport cabi_post_ostler:plugin/reconciler@0.1.0#cleanup
func postReconcilerCleanup(uint32) { release() }
