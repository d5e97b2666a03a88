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

func loadKubernetesProjection(p uint32) (v KubernetesProjection) {
	v.Case = load[KubernetesProjectionCase](p)
	switch v.Case {
	case KubernetesProjectionFields:
		v.Fields = loadListString(p + 4)
	}
	return v
}

func storeKubernetesProjection(p uint32, v KubernetesProjection) {
	store(p, v.Case)
	switch v.Case {
	case KubernetesProjectionFields:
		storeListString(p+4, v.Fields)
	}
}

func loadKubernetesGetOptions(p uint32) (v KubernetesGetOptions) {
	v.Live = load[uint8](p+0) != 0
	v.Projection = loadKubernetesProjection(p + 4)
	return v
}

func storeKubernetesGetOptions(p uint32, v KubernetesGetOptions) {
	store(uint32(p+0), uint8(flag(v.Live)))
	storeKubernetesProjection(p+4, v.Projection)
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

func loadConditionStatus(p uint32) (v ConditionStatus) {
	v = load[ConditionStatus](p)
	return v
}

func storeConditionStatus(p uint32, v ConditionStatus) {
	store(p, v)
}

func loadNotReady(p uint32) (v NotReady) {
	v.Ref = loadObjectRef(p + 0)
	v.Condition = loadString(p + 56)
	v.Status = loadConditionStatus(p + 64)
	v.Exists = load[uint8](p+65) != 0
	v.Reason = loadString(p + 68)
	v.Message = loadString(p + 76)
	return v
}

func storeNotReady(p uint32, v NotReady) {
	storeObjectRef(p+0, v.Ref)
	storeString(p+56, v.Condition)
	storeConditionStatus(p+64, v.Status)
	store(uint32(p+65), uint8(flag(v.Exists)))
	storeString(p+68, v.Reason)
	storeString(p+76, v.Message)
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
	case ErrorLimitExceeded:
		v.LimitExceeded = loadString(p + 8)
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
	case ErrorLimitExceeded:
		storeString(p+8, v.LimitExceeded)
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
// Returns an object, or none if there is no such object.
//
// Fails with `invalid` if the reference is malformed, and with `unavailable`
// if the cache cannot be filled or, for a live read, if the API server
// cannot be reached.
func KubernetesGet(ref ObjectRef, options KubernetesGetOptions) (*[]byte, *Error) {
	defer release()
	p := allocate(72, 4)
	storeObjectRef(p+0, ref)
	storeKubernetesGetOptions(p+56, options)
	answer := allocate(104, 8)
	hostKubernetesGet(p, answer)
	r := loadResultOptionBytesOrError(answer)
	return r.Ok, r.Err
}

func loadOptionUint32(p uint32) (v *uint32) {
	if load[uint8](p) != 0 {
		some := load[uint32](p + 4)
		v = &some
	}
	return v
}

func storeOptionUint32(p uint32, v *uint32) {
	store(p, uint8(flag(v != nil)))
	if v != nil {
		store(uint32(p+4), *v)
	}
}

func loadKubernetesListOptions(p uint32) (v KubernetesListOptions) {
	v.Cluster = loadOptionString(p + 0)
	v.Namespace = loadOptionString(p + 12)
	v.LabelSelector = loadOptionString(p + 24)
	v.FieldSelector = loadOptionString(p + 36)
	v.Projection = loadKubernetesProjection(p + 48)
	v.Limit = loadOptionUint32(p + 60)
	v.ContinueToken = loadOptionString(p + 68)
	v.Live = load[uint8](p+80) != 0
	return v
}

func storeKubernetesListOptions(p uint32, v KubernetesListOptions) {
	storeOptionString(p+0, v.Cluster)
	storeOptionString(p+12, v.Namespace)
	storeOptionString(p+24, v.LabelSelector)
	storeOptionString(p+36, v.FieldSelector)
	storeKubernetesProjection(p+48, v.Projection)
	storeOptionUint32(p+60, v.Limit)
	storeOptionString(p+68, v.ContinueToken)
	store(uint32(p+80), uint8(flag(v.Live)))
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
// Returns the objects of a kind that match the options, one page at a time.
//
// Fails with `invalid` if a selector or the token is malformed, and with
// `unavailable` as `get` does.
func KubernetesList(gvk Gvk, options KubernetesListOptions) (KubernetesPage, *Error) {
	defer release()
	p := allocate(108, 4)
	storeGvk(p+0, gvk)
	storeKubernetesListOptions(p+24, options)
	answer := allocate(104, 8)
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
// Returns an object that is ready for its current generation, and not being
// deleted: a custom resource by its condition `Ready`, a built-in kind by
// the rule that kstatus has for it. A Deployment has all pods updated and
// available, a Job is complete, a PersistentVolumeClaim is bound, a
// ConfigMap exists.
//
// Fails with `not-ready` if there is no such object or it is not ready, and
// otherwise as `get` does.
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
	answer := allocate(104, 8)
	hostKubernetesRequireReady(address1, count2, address3, count4, address5, count6, some9, flat10, flat11, some14, flat15, flat16, address17, count18, answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 require-condition
func hostKubernetesRequireCondition(a0 uint32, a1 uint32)

// KubernetesRequireCondition:
// Returns an object whose condition of this type has this status for its
// current generation, and which is not being deleted. A condition without
// `observedGeneration` counts by `status.observedGeneration`; if the object
// has neither, the condition counts as it is.
//
// Fails with `not-ready` if there is no such object or its condition differs,
// with `invalid` if the type is empty, and otherwise as `get` does.
func KubernetesRequireCondition(ref ObjectRef, type_ string, status ConditionStatus) ([]byte, *Error) {
	defer release()
	p := allocate(68, 4)
	storeObjectRef(p+0, ref)
	storeString(p+56, type_)
	storeConditionStatus(p+64, status)
	answer := allocate(104, 8)
	hostKubernetesRequireCondition(p, answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

func loadSecretKeyRef(p uint32) (v SecretKeyRef) {
	v.Cluster = loadOptionString(p + 0)
	v.Namespace = loadOptionString(p + 12)
	v.Name = loadString(p + 24)
	v.Key = loadString(p + 32)
	return v
}

func storeSecretKeyRef(p uint32, v SecretKeyRef) {
	storeOptionString(p+0, v.Cluster)
	storeOptionString(p+12, v.Namespace)
	storeString(p+24, v.Name)
	storeString(p+32, v.Key)
}

func loadUsername(p uint32) (v Username) {
	v.Case = load[UsernameCase](p)
	switch v.Case {
	case UsernameLiteral:
		v.Literal = loadString(p + 4)
	case UsernameSecret:
		v.Secret = loadSecretKeyRef(p + 4)
	}
	return v
}

func storeUsername(p uint32, v Username) {
	store(p, v.Case)
	switch v.Case {
	case UsernameLiteral:
		storeString(p+4, v.Literal)
	case UsernameSecret:
		storeSecretKeyRef(p+4, v.Secret)
	}
}

func loadBasicCredentials(p uint32) (v BasicCredentials) {
	v.Username = loadUsername(p + 0)
	v.Password = loadSecretKeyRef(p + 44)
	return v
}

func storeBasicCredentials(p uint32, v BasicCredentials) {
	storeUsername(p+0, v.Username)
	storeSecretKeyRef(p+44, v.Password)
}

func loadSecretSource(p uint32) (v SecretSource) {
	v.Case = load[SecretSourceCase](p)
	switch v.Case {
	case SecretSourceKey:
		v.Key = loadSecretKeyRef(p + 4)
	case SecretSourceBasic:
		v.Basic = loadBasicCredentials(p + 4)
	}
	return v
}

func storeSecretSource(p uint32, v SecretSource) {
	store(p, v.Case)
	switch v.Case {
	case SecretSourceKey:
		storeSecretKeyRef(p+4, v.Key)
	case SecretSourceBasic:
		storeBasicCredentials(p+4, v.Basic)
	}
}

func loadEncoding(p uint32) (v Encoding) {
	v = load[Encoding](p)
	return v
}

func storeEncoding(p uint32, v Encoding) {
	store(p, v)
}

func loadSubstitution(p uint32) (v Substitution) {
	v.Placeholder = loadString(p + 0)
	v.Source = loadSecretSource(p + 8)
	v.Encoding = loadEncoding(p + 96)
	return v
}

func storeSubstitution(p uint32, v Substitution) {
	storeString(p+0, v.Placeholder)
	storeSecretSource(p+8, v.Source)
	storeEncoding(p+96, v.Encoding)
}

func lowerListSubstitution(v []Substitution) (uint32, uint32) {
	address := allocate(uint32(len(v))*100, 4)
	item := address
	for i := range v {
		storeSubstitution(item, v[i])
		item += 100
	}
	return address, uint32(len(v))
}

func loadListSubstitution(p uint32) (v []Substitution) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadSubstitution(item))
		item += 100
	}
	return v
}

func storeListSubstitution(p uint32, v []Substitution) {
	address, count := lowerListSubstitution(v)
	store(p, address)
	store(p+4, count)
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 apply
func hostKubernetesApply(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32)

// KubernetesApply:
// Applies the given fields by server-side apply and returns the resulting
// object. The field manager is the name of the plugin. An apply that would
// change nothing is not sent.
//
// Fails with `conflict` if another manager owns a field and `force` is not
// set, with `invalid` if the object or a substitution is malformed or the
// API server rejects it, with `not-found` if a substituted secret does not
// exist, and with `unavailable` if the API server cannot be reached.
func KubernetesApply(object []byte, options KubernetesApplyOptions) ([]byte, *Error) {
	defer release()
	address19, count20 := lowerBytes(object)
	var some23 uint32
	var flat24 uint32
	var flat25 uint32
	if options.Cluster != nil {
		some23 = 1
		address21, count22 := lowerString((*options.Cluster))
		flat24 = address21
		flat25 = count22
	}
	address26, count27 := lowerListSubstitution(options.Substitutions)
	answer := allocate(104, 8)
	hostKubernetesApply(address19, count20, some23, flat24, flat25, flag(options.Owned), flag(options.Force), address26, count27, answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 create
func hostKubernetesCreate(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32)

// KubernetesCreate:
// Creates an object and returns it.
//
// Fails with `conflict` if the object exists, and otherwise as `apply` does.
func KubernetesCreate(object []byte, options KubernetesCreateOptions) ([]byte, *Error) {
	defer release()
	address28, count29 := lowerBytes(object)
	var some32 uint32
	var flat33 uint32
	var flat34 uint32
	if options.Cluster != nil {
		some32 = 1
		address30, count31 := lowerString((*options.Cluster))
		flat33 = address30
		flat34 = count31
	}
	address35, count36 := lowerListSubstitution(options.Substitutions)
	answer := allocate(104, 8)
	hostKubernetesCreate(address28, count29, some32, flat33, flat34, flag(options.Owned), address35, count36, answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

func loadKubernetesPreconditions(p uint32) (v KubernetesPreconditions) {
	v.Uid = loadOptionString(p + 0)
	v.ResourceVersion = loadOptionString(p + 12)
	return v
}

func storeKubernetesPreconditions(p uint32, v KubernetesPreconditions) {
	storeOptionString(p+0, v.Uid)
	storeOptionString(p+12, v.ResourceVersion)
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 patch
func hostKubernetesPatch(a0 uint32, a1 uint32)

// KubernetesPatch:
// Applies a JSON merge patch (RFC 7386) to an object and returns the
// result. Prefer `apply`, which records the ownership of fields; a patch is
// for changes that depend on the current object, for example to an element
// of a list. The patch may change `metadata` in labels and annotations alone,
// and `status` only if the kind has no status subresource. A patch that would
// change nothing is not sent.
//
// Fails with `not-found` if there is no such object, with `conflict` if a
// precondition is not met, with `invalid` if the patch is malformed or the
// API server rejects it, and with `unavailable` if the API server cannot be
// reached.
func KubernetesPatch(ref ObjectRef, patch []byte, preconditions KubernetesPreconditions) ([]byte, *Error) {
	defer release()
	p := allocate(88, 4)
	storeObjectRef(p+0, ref)
	storeBytes(p+56, patch)
	storeKubernetesPreconditions(p+64, preconditions)
	answer := allocate(104, 8)
	hostKubernetesPatch(p, answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 patch-subresource
func hostKubernetesPatchSubresource(a0 uint32, a1 uint32)

// KubernetesPatchSubresource:
// Applies a JSON merge patch (RFC 7386) to a subresource that has the form of
// the object itself, such as `resize` of a Pod, and returns the object. The
// API server takes from it what belongs to the subresource. The permission
// names it after the kind, as `Pod/resize` with the verb `patch`. `status` is
// refused: it belongs to the controller of the object. The patch is sent even
// if it would change nothing.
//
// Fails with `unsupported` if the API server has no such subresource of the
// kind, and otherwise as `patch` does.
func KubernetesPatchSubresource(ref ObjectRef, subresource string, patch []byte, preconditions KubernetesPreconditions) ([]byte, *Error) {
	defer release()
	p := allocate(96, 4)
	storeObjectRef(p+0, ref)
	storeString(p+56, subresource)
	storeBytes(p+64, patch)
	storeKubernetesPreconditions(p+72, preconditions)
	answer := allocate(104, 8)
	hostKubernetesPatchSubresource(p, answer)
	r := loadResultBytesOrError(answer)
	return r.Ok, r.Err
}

func loadKubernetesPropagation(p uint32) (v KubernetesPropagation) {
	v = load[KubernetesPropagation](p)
	return v
}

func storeKubernetesPropagation(p uint32, v KubernetesPropagation) {
	store(p, v)
}

func loadKubernetesDeleteOptions(p uint32) (v KubernetesDeleteOptions) {
	v.Propagation = loadKubernetesPropagation(p + 0)
	v.Preconditions = loadKubernetesPreconditions(p + 4)
	return v
}

func storeKubernetesDeleteOptions(p uint32, v KubernetesDeleteOptions) {
	storeKubernetesPropagation(p+0, v.Propagation)
	storeKubernetesPreconditions(p+4, v.Preconditions)
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
// Deletes an object. It succeeds if there is no such object.
//
// Fails with `conflict` if a precondition is not met, and with `unavailable`
// if the API server cannot be reached.
func KubernetesDelete(ref ObjectRef, options KubernetesDeleteOptions) *Error {
	defer release()
	p := allocate(84, 4)
	storeObjectRef(p+0, ref)
	storeKubernetesDeleteOptions(p+56, options)
	answer := allocate(104, 8)
	hostKubernetesDelete(p, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

func loadKubernetesLogOptions(p uint32) (v KubernetesLogOptions) {
	v.Container = loadOptionString(p + 0)
	v.TailLines = load[uint32](p + 12)
	v.Previous = load[uint8](p+16) != 0
	return v
}

func storeKubernetesLogOptions(p uint32, v KubernetesLogOptions) {
	storeOptionString(p+0, v.Container)
	store(uint32(p+12), v.TailLines)
	store(uint32(p+16), uint8(flag(v.Previous)))
}

func loadResultStringOrError(p uint32) (v Result[string, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadString(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultStringOrError(p uint32, v Result[string, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeString(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/kubernetes@0.1.0 read-log
func hostKubernetesReadLog(a0 uint32, a1 uint32)

// KubernetesReadLog:
// Returns the newest lines of the log of a container, of a pod that may be
// running. The permission names it as `Pod/log` with the verb `get`. It is
// a request to the API server and through it to the kubelet, and wakes
// nobody when the log grows. Of lines that have more than 64 KiB together,
// fewer are returned; bytes that are not UTF-8 are replaced.
//
// Fails with `not-found` if there is no such pod, with `invalid` if there
// is no such container or it has not started yet, with `denied` without
// the permission, and with `unavailable` if API server or kubelet cannot be
// reached.
func KubernetesReadLog(pod ObjectRef, options KubernetesLogOptions) (string, *Error) {
	defer release()
	p := allocate(76, 4)
	storeObjectRef(p+0, pod)
	storeKubernetesLogOptions(p+56, options)
	answer := allocate(104, 8)
	hostKubernetesReadLog(p, answer)
	r := loadResultStringOrError(answer)
	return r.Ok, r.Err
}

//go:wasmimport ostler:plugin/references@0.1.0 hold
func hostReferencesHold(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32, a11 uint32, a12 uint32, a13 uint32, a14 uint32)

// ReferencesHold:
// Holds an object for as long as the reconciled object uses it. Each
// reconcile declares the whole set: what a successful reconcile does not
// hold again is released. The host encodes holds as finalizers.
//
// Fails with `not-found` if there is no such object, with `not-ready` if it
// is being deleted already, with `invalid` if the hold would close a cycle
// of holds, and with `unavailable` if the API server cannot be reached.
func ReferencesHold(ref ObjectRef) *Error {
	defer release()
	address37, count38 := lowerString(ref.Gvk.Group)
	address39, count40 := lowerString(ref.Gvk.Version)
	address41, count42 := lowerString(ref.Gvk.Kind)
	var some45 uint32
	var flat46 uint32
	var flat47 uint32
	if ref.Cluster != nil {
		some45 = 1
		address43, count44 := lowerString((*ref.Cluster))
		flat46 = address43
		flat47 = count44
	}
	var some50 uint32
	var flat51 uint32
	var flat52 uint32
	if ref.Namespace != nil {
		some50 = 1
		address48, count49 := lowerString((*ref.Namespace))
		flat51 = address48
		flat52 = count49
	}
	address53, count54 := lowerString(ref.Name)
	answer := allocate(104, 8)
	hostReferencesHold(address37, count38, address39, count40, address41, count42, some45, flat46, flat47, some50, flat51, flat52, address53, count54, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

func lowerListObjectRef(v []ObjectRef) (uint32, uint32) {
	address := allocate(uint32(len(v))*56, 4)
	item := address
	for i := range v {
		storeObjectRef(item, v[i])
		item += 56
	}
	return address, uint32(len(v))
}

func loadListObjectRef(p uint32) (v []ObjectRef) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadObjectRef(item))
		item += 56
	}
	return v
}

func storeListObjectRef(p uint32, v []ObjectRef) {
	address, count := lowerListObjectRef(v)
	store(p, address)
	store(p+4, count)
}

func loadResultListObjectRefOrError(p uint32) (v Result[[]ObjectRef, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadListObjectRef(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultListObjectRefOrError(p uint32, v Result[[]ObjectRef, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeListObjectRef(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/references@0.1.0 list-holders
func hostReferencesListHolders(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32, a11 uint32, a12 uint32, a13 uint32, a14 uint32)

// ReferencesListHolders:
// Returns the objects that hold an object, ordered by kind, namespace and
// name; an empty list if there are none or the object does not exist. The
// reconciled object is reconciled again when the list changes. It needs the
// permission to read the object.
//
// Fails as `kubernetes.get` does.
func ReferencesListHolders(ref ObjectRef) ([]ObjectRef, *Error) {
	defer release()
	address55, count56 := lowerString(ref.Gvk.Group)
	address57, count58 := lowerString(ref.Gvk.Version)
	address59, count60 := lowerString(ref.Gvk.Kind)
	var some63 uint32
	var flat64 uint32
	var flat65 uint32
	if ref.Cluster != nil {
		some63 = 1
		address61, count62 := lowerString((*ref.Cluster))
		flat64 = address61
		flat65 = count62
	}
	var some68 uint32
	var flat69 uint32
	var flat70 uint32
	if ref.Namespace != nil {
		some68 = 1
		address66, count67 := lowerString((*ref.Namespace))
		flat69 = address66
		flat70 = count67
	}
	address71, count72 := lowerString(ref.Name)
	answer := allocate(104, 8)
	hostReferencesListHolders(address55, count56, address57, count58, address59, count60, some63, flat64, flat65, some68, flat69, flat70, address71, count72, answer)
	r := loadResultListObjectRefOrError(answer)
	return r.Ok, r.Err
}

func loadResultBoolOrError(p uint32) (v Result[bool, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = load[uint8](p+8) != 0
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultBoolOrError(p uint32, v Result[bool, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		store(uint32(p+8), uint8(flag(v.Ok)))
	} else {
		storeError(p+8, *v.Err)
	}
}

//go:wasmimport ostler:plugin/permits@0.1.0 acquire
func hostPermitsAcquire(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// PermitsAcquire:
// Requests a permit of a pool for the reconciled object. False means that
// the object waits for one: it is reconciled again when it gets it, and only
// then, however many wait. A permit that becomes free goes to the namespace
// with the fewest permits, and there to the oldest object that waits.
//
// Each reconcile requests what it needs: a permit that a successful
// reconcile does not request again is released, as is that of an object that
// is gone. After a failure the object keeps what it has.
//
// `limit` is the number of permits of the pool. With `held` the object has
// begun already what the permit is for, and gets it in any case: permits are
// in the memory of the host, and it is by this that they survive a restart,
// after which none is granted before all objects have been reconciled once.
//
// Fails with `invalid` if the name is not a DNS label, and with
// `limit-exceeded` if the plugin has too many pools.
func PermitsAcquire(pool string, limit uint32, held bool) (bool, *Error) {
	defer release()
	address73, count74 := lowerString(pool)
	answer := allocate(104, 8)
	hostPermitsAcquire(address73, count74, uint32(limit), flag(held), answer)
	r := loadResultBoolOrError(answer)
	return r.Ok, r.Err
}

//go:wasmimport ostler:plugin/permits@0.1.0 release
func hostPermitsRelease(a0 uint32, a1 uint32)

// PermitsRelease:
// Releases the permit of the reconciled object at once, or ends its wait for
// one. It is for an object that cannot use its permit for now.
func PermitsRelease(pool string) {
	defer release()
	address75, count76 := lowerString(pool)
	hostPermitsRelease(address75, count76)
}

func loadUpstreamRef(p uint32) (v UpstreamRef) {
	v.Cluster = loadOptionString(p + 0)
	v.Namespace = loadOptionString(p + 12)
	v.Name = loadString(p + 24)
	return v
}

func storeUpstreamRef(p uint32, v UpstreamRef) {
	storeOptionString(p+0, v.Cluster)
	storeOptionString(p+12, v.Namespace)
	storeString(p+24, v.Name)
}

func loadHttpMethod(p uint32) (v HttpMethod) {
	v = load[HttpMethod](p)
	return v
}

func storeHttpMethod(p uint32, v HttpMethod) {
	store(p, v)
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

func loadHttpRequest(p uint32) (v HttpRequest) {
	v.Upstream = loadUpstreamRef(p + 0)
	v.Method = loadHttpMethod(p + 32)
	v.PathAndQuery = loadString(p + 36)
	v.Headers = loadListHttpHeader(p + 44)
	v.Body = loadOptionBytes(p + 52)
	v.Substitutions = loadListSubstitution(p + 64)
	v.Timeout = loadOptionUint64(p + 72)
	return v
}

func storeHttpRequest(p uint32, v HttpRequest) {
	storeUpstreamRef(p+0, v.Upstream)
	storeHttpMethod(p+32, v.Method)
	storeString(p+36, v.PathAndQuery)
	storeListHttpHeader(p+44, v.Headers)
	storeOptionBytes(p+52, v.Body)
	storeListSubstitution(p+64, v.Substitutions)
	storeOptionUint64(p+72, v.Timeout)
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
// Sends a request and returns the response. A response with any status code
// is a success of this function. Redirects are not followed.
//
// # Authentication
//
// The host adds the credentials of the upstream. After a response with
// status 401 it logs in again and repeats the request once. If the login
// itself is refused, the function returns a response with status 401 and
// the reason in its body.
//
// # Caching
//
// A GET request with the header `Cache-Control: max-age=N`, and without body
// and substitutions, may be answered with an earlier response of status 200
// that is at most N seconds old and belongs to the same path and header
// fields. Concurrent requests of this kind share one request to the
// upstream, whichever object they are for. Other responses and errors are
// not cached; they are shared with the requests that were waiting for them.
//
// # Redaction
//
// In a response the host redacts the credentials, the values that they are
// derived from, and the secrets that were substituted in requests to the
// upstream with their previous values, as far as it has known them since it
// started. Passwords of the credentials are redacted if they have 8
// characters or more. Redaction guards against accidents, not against a
// hostile server or plugin.
//
// # Errors
//
// Fails with `not-found` if the upstream or a secret does not exist, with
// `invalid` if the request is malformed, with `throttled` if a limit of the
// upstream is reached, and with `unavailable` if the upstream cannot be
// reached, breaks the connection or exceeds the timeout.
func HttpSend(request HttpRequest) (HttpResponse, *Error) {
	defer release()
	p := allocate(88, 8)
	storeHttpRequest(p+0, request)
	answer := allocate(104, 8)
	hostHttpSend(p, answer)
	r := loadResultHttpResponseOrError(answer)
	return r.Ok, r.Err
}

func lowerListHttpRequest(v []HttpRequest) (uint32, uint32) {
	address := allocate(uint32(len(v))*88, 8)
	item := address
	for i := range v {
		storeHttpRequest(item, v[i])
		item += 88
	}
	return address, uint32(len(v))
}

func loadListHttpRequest(p uint32) (v []HttpRequest) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadHttpRequest(item))
		item += 88
	}
	return v
}

func storeListHttpRequest(p uint32, v []HttpRequest) {
	address, count := lowerListHttpRequest(v)
	store(p, address)
	store(p+4, count)
}

func lowerListResultHttpResponseOrError(v []Result[HttpResponse, Error]) (uint32, uint32) {
	address := allocate(uint32(len(v))*104, 8)
	item := address
	for i := range v {
		storeResultHttpResponseOrError(item, v[i])
		item += 104
	}
	return address, uint32(len(v))
}

func loadListResultHttpResponseOrError(p uint32) (v []Result[HttpResponse, Error]) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadResultHttpResponseOrError(item))
		item += 104
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
// Sends several requests concurrently, within the limits of their
// upstreams, and returns their results in the same order. At most 64
// requests are sent at once; with more, each result is `limit-exceeded`.
func HttpSendAll(requests []HttpRequest) []Result[HttpResponse, Error] {
	defer release()
	address77, count78 := lowerListHttpRequest(requests)
	answer := allocate(8, 4)
	hostHttpSendAll(address77, count78, answer)
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
func hostHttpSecretDigest(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32)

// HttpSecretDigest:
// Returns a keyed digest of the value of a secret, or none if there is no
// such key. It changes when the value changes and reveals nothing about it,
// so a plugin can notice a rotation. The reconciled object is reconciled
// again when the secret changes.
//
// Fails with `invalid` if the reference is malformed.
func HttpSecretDigest(secret SecretKeyRef) (*string, *Error) {
	defer release()
	var some81 uint32
	var flat82 uint32
	var flat83 uint32
	if secret.Cluster != nil {
		some81 = 1
		address79, count80 := lowerString((*secret.Cluster))
		flat82 = address79
		flat83 = count80
	}
	var some86 uint32
	var flat87 uint32
	var flat88 uint32
	if secret.Namespace != nil {
		some86 = 1
		address84, count85 := lowerString((*secret.Namespace))
		flat87 = address84
		flat88 = count85
	}
	address89, count90 := lowerString(secret.Name)
	address91, count92 := lowerString(secret.Key)
	answer := allocate(104, 8)
	hostHttpSecretDigest(some81, flat82, flat83, some86, flat87, flat88, address89, count90, address91, count92, answer)
	r := loadResultOptionStringOrError(answer)
	return r.Ok, r.Err
}

func loadHttpDataMatch(p uint32) (v HttpDataMatch) {
	v.Pointer = loadString(p + 0)
	v.Value = loadString(p + 8)
	return v
}

func storeHttpDataMatch(p uint32, v HttpDataMatch) {
	storeString(p+0, v.Pointer)
	storeString(p+8, v.Value)
}

func loadOptionHttpDataMatch(p uint32) (v *HttpDataMatch) {
	if load[uint8](p) != 0 {
		some := loadHttpDataMatch(p + 4)
		v = &some
	}
	return v
}

func storeOptionHttpDataMatch(p uint32, v *HttpDataMatch) {
	store(p, uint8(flag(v != nil)))
	if v != nil {
		storeHttpDataMatch(p+4, *v)
	}
}

func loadHttpEventMatch(p uint32) (v HttpEventMatch) {
	v.Name = loadOptionString(p + 0)
	v.Data = loadOptionHttpDataMatch(p + 12)
	return v
}

func storeHttpEventMatch(p uint32, v HttpEventMatch) {
	storeOptionString(p+0, v.Name)
	storeOptionHttpDataMatch(p+12, v.Data)
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
func hostHttpSubscribe(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32, a5 uint32, a6 uint32, a7 uint32, a8 uint32, a9 uint32, a10 uint32, a11 uint32, a12 uint32, a13 uint32, a14 uint32)

// HttpSubscribe:
// Keeps an event stream open on behalf of the reconciled object. Its events
// cause a reconcile.
//
// One connection per upstream and path serves all objects. The host
// reconnects with backoff, after the last event if the server sends ids.
// Whenever events may have been missed, which includes the first
// connection, it reconciles the object once; so subscribe first, then read.
// The subscription ends when a successful reconcile does not repeat it, with
// the object, and with the leadership of the host. It needs the grant for a
// GET request.
//
// Fails with `not-found` if the upstream does not exist, with `invalid` if
// the subscription is malformed, and with `unavailable` if the upstream has
// too many streams.
func HttpSubscribe(subscription HttpSubscription) *Error {
	defer release()
	var some95 uint32
	var flat96 uint32
	var flat97 uint32
	if subscription.Upstream.Cluster != nil {
		some95 = 1
		address93, count94 := lowerString((*subscription.Upstream.Cluster))
		flat96 = address93
		flat97 = count94
	}
	var some100 uint32
	var flat101 uint32
	var flat102 uint32
	if subscription.Upstream.Namespace != nil {
		some100 = 1
		address98, count99 := lowerString((*subscription.Upstream.Namespace))
		flat101 = address98
		flat102 = count99
	}
	address103, count104 := lowerString(subscription.Upstream.Name)
	address105, count106 := lowerString(subscription.PathAndQuery)
	address107, count108 := lowerListHttpEventMatch(subscription.Wake)
	address109, count110 := lowerListHttpEventMatch(subscription.Until)
	answer := allocate(104, 8)
	hostHttpSubscribe(some95, flat96, flat97, some100, flat101, flat102, address103, count104, address105, count106, address107, count108, address109, count110, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

func loadHttpEventQuery(p uint32) (v HttpEventQuery) {
	v.Upstream = loadUpstreamRef(p + 0)
	v.PathAndQuery = loadString(p + 32)
	v.Select = loadListHttpEventMatch(p + 40)
	v.Until = loadListHttpEventMatch(p + 48)
	v.MaxEvents = loadOptionUint32(p + 56)
	v.MaxBytes = loadOptionUint32(p + 64)
	v.Timeout = loadOptionUint64(p + 72)
	return v
}

func storeHttpEventQuery(p uint32, v HttpEventQuery) {
	storeUpstreamRef(p+0, v.Upstream)
	storeString(p+32, v.PathAndQuery)
	storeListHttpEventMatch(p+40, v.Select)
	storeListHttpEventMatch(p+48, v.Until)
	storeOptionUint32(p+56, v.MaxEvents)
	storeOptionUint32(p+64, v.MaxBytes)
	storeOptionUint64(p+72, v.Timeout)
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
func hostHttpReadEvents(a0 uint32, a1 uint32)

// HttpReadEvents:
// Reads an event stream to its end and returns its last events; the host
// keeps no more than these. The query counts as one concurrent request to
// the upstream, and its events cause no reconcile. Redaction works as in
// `send`, but a secret that is split over two events is not recognized.
//
// Fails as `send` does.
func HttpReadEvents(query HttpEventQuery) (HttpEventTail, *Error) {
	defer release()
	p := allocate(88, 8)
	storeHttpEventQuery(p+0, query)
	answer := allocate(104, 8)
	hostHttpReadEvents(p, answer)
	r := loadResultHttpEventTailOrError(answer)
	return r.Ok, r.Err
}

func loadHeaderValue(p uint32) (v HeaderValue) {
	v.Case = load[HeaderValueCase](p)
	switch v.Case {
	case HeaderValueString:
		v.String = loadString(p + 8)
	case HeaderValueBytes:
		v.Bytes = loadBytes(p + 8)
	case HeaderValueBoolean:
		v.Boolean = load[uint8](p+8) != 0
	case HeaderValueInteger:
		v.Integer = load[int64](p + 8)
	case HeaderValueFloat:
		v.Float = load[float64](p + 8)
	case HeaderValueTimestamp:
		v.Timestamp = load[uint64](p + 8)
	case HeaderValueStructure:
		v.Structure = loadBytes(p + 8)
	}
	return v
}

func storeHeaderValue(p uint32, v HeaderValue) {
	store(p, v.Case)
	switch v.Case {
	case HeaderValueString:
		storeString(p+8, v.String)
	case HeaderValueBytes:
		storeBytes(p+8, v.Bytes)
	case HeaderValueBoolean:
		store(uint32(p+8), uint8(flag(v.Boolean)))
	case HeaderValueInteger:
		store(uint32(p+8), v.Integer)
	case HeaderValueFloat:
		store(uint32(p+8), v.Float)
	case HeaderValueTimestamp:
		store(uint32(p+8), v.Timestamp)
	case HeaderValueStructure:
		storeBytes(p+8, v.Structure)
	}
}

func loadMessageHeader(p uint32) (v MessageHeader) {
	v.Name = loadString(p + 0)
	v.Value = loadHeaderValue(p + 8)
	return v
}

func storeMessageHeader(p uint32, v MessageHeader) {
	storeString(p+0, v.Name)
	storeHeaderValue(p+8, v.Value)
}

func lowerListMessageHeader(v []MessageHeader) (uint32, uint32) {
	address := allocate(uint32(len(v))*24, 8)
	item := address
	for i := range v {
		storeMessageHeader(item, v[i])
		item += 24
	}
	return address, uint32(len(v))
}

func loadListMessageHeader(p uint32) (v []MessageHeader) {
	item, count := load[uint32](p), load[uint32](p+4)
	for range count {
		v = append(v, loadMessageHeader(item))
		item += 24
	}
	return v
}

func storeListMessageHeader(p uint32, v []MessageHeader) {
	address, count := lowerListMessageHeader(v)
	store(p, address)
	store(p+4, count)
}

func loadOptionUint8(p uint32) (v *uint8) {
	if load[uint8](p) != 0 {
		some := load[uint8](p + 1)
		v = &some
	}
	return v
}

func storeOptionUint8(p uint32, v *uint8) {
	store(p, uint8(flag(v != nil)))
	if v != nil {
		store(uint32(p+1), *v)
	}
}

func loadMessageProperties(p uint32) (v MessageProperties) {
	v.ContentType = loadOptionString(p + 0)
	v.ContentEncoding = loadOptionString(p + 12)
	v.Headers = loadListMessageHeader(p + 24)
	v.Persistent = load[uint8](p+32) != 0
	v.Priority = loadOptionUint8(p + 33)
	v.CorrelationId = loadOptionString(p + 36)
	v.ReplyTo = loadOptionString(p + 48)
	v.Expiration = loadOptionUint64(p + 64)
	v.MessageId = loadOptionString(p + 80)
	v.Timestamp = loadOptionUint64(p + 96)
	v.Type = loadOptionString(p + 112)
	v.UserId = loadOptionString(p + 124)
	v.AppId = loadOptionString(p + 136)
	return v
}

func storeMessageProperties(p uint32, v MessageProperties) {
	storeOptionString(p+0, v.ContentType)
	storeOptionString(p+12, v.ContentEncoding)
	storeListMessageHeader(p+24, v.Headers)
	store(uint32(p+32), uint8(flag(v.Persistent)))
	storeOptionUint8(p+33, v.Priority)
	storeOptionString(p+36, v.CorrelationId)
	storeOptionString(p+48, v.ReplyTo)
	storeOptionUint64(p+64, v.Expiration)
	storeOptionString(p+80, v.MessageId)
	storeOptionUint64(p+96, v.Timestamp)
	storeOptionString(p+112, v.Type)
	storeOptionString(p+124, v.UserId)
	storeOptionString(p+136, v.AppId)
}

func loadMessagingMessage(p uint32) (v MessagingMessage) {
	v.Exchange = loadString(p + 0)
	v.RoutingKey = loadString(p + 8)
	v.Properties = loadMessageProperties(p + 16)
	v.Body = loadBytes(p + 168)
	v.Mandatory = load[uint8](p+176) != 0
	return v
}

func storeMessagingMessage(p uint32, v MessagingMessage) {
	storeString(p+0, v.Exchange)
	storeString(p+8, v.RoutingKey)
	storeMessageProperties(p+16, v.Properties)
	storeBytes(p+168, v.Body)
	store(uint32(p+176), uint8(flag(v.Mandatory)))
}

//go:wasmimport ostler:plugin/messaging@0.1.0 publish
func hostMessagingPublish(a0 uint32, a1 uint32)

// MessagingPublish:
// Publishes a message and waits until the broker confirms it. A message
// whose confirmation is lost may have been published, so give it a
// `message-id` by which consumers recognize the duplicate.
//
// Fails with `not-found` if the broker or the exchange does not exist, with
// `invalid` if the message is malformed, with `throttled` if a limit of the
// broker is reached, with `unavailable` if the broker cannot be reached or
// does not confirm, and with `unsupported` if this host has no brokers.
func MessagingPublish(broker UpstreamRef, message MessagingMessage) *Error {
	defer release()
	p := allocate(216, 8)
	storeUpstreamRef(p+0, broker)
	storeMessagingMessage(p+32, message)
	answer := allocate(104, 8)
	hostMessagingPublish(p, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

//go:wasmimport ostler:plugin/status@0.1.0 checkpoint
func hostStatusCheckpoint(a0 uint32, a1 uint32, a2 uint32)

// StatusCheckpoint:
// Merges these fields into the status of the reconciled object and writes it
// at once, before an effect that must happen exactly once. Only after a
// success may the plugin go on to that effect.
//
// Fails with `conflict` if the object was replaced or changed, with
// `invalid` if the fields are not a JSON object or the API server rejects
// them, and with `unavailable` if the API server cannot be reached.
func StatusCheckpoint(fields []byte) *Error {
	defer release()
	address111, count112 := lowerBytes(fields)
	answer := allocate(104, 8)
	hostStatusCheckpoint(address111, count112, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

//go:wasmimport ostler:plugin/events@0.1.0 emit
func hostEventsEmit(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// EventsEmit:
// Emits an Event. The host aggregates repeated Events and limits their
// rate. The reason is CamelCase, the note one sentence that must never
// contain a secret. It never fails: an Event that cannot be written is
// counted and dropped.
func EventsEmit(type_ EventsEventType, reason string, note string) {
	defer release()
	address113, count114 := lowerString(reason)
	address115, count116 := lowerString(note)
	hostEventsEmit(uint32(type_), address113, count114, address115, count116)
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

//go:wasmimport ostler:plugin/log@0.1.0 write
func hostLogWrite(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// LogWrite:
// Writes a line. The fields are pairs of key and value.
//
// A line of level error with the field `exception.location` (file and line,
// or empty) reports a panic: if the call traps next, the message of the
// trap is that of the line. `exception.stacktrace` is for the log.
func LogWrite(level LogLevel, message string, fields []struct {
	F0 string
	F1 string
}) {
	defer release()
	address117, count118 := lowerString(message)
	address119, count120 := lowerListTupleStringString(fields)
	hostLogWrite(uint32(level), address117, count118, address119, count120)
}

//go:wasmimport ostler:plugin/metrics@0.1.0 counter
func hostMetricsCounter(a0 uint32, a1 uint32, a2 uint64)

// MetricsCounter:
// Adds to a counter.
func MetricsCounter(name string, delta uint64) {
	defer release()
	address121, count122 := lowerString(name)
	hostMetricsCounter(address121, count122, delta)
}

//go:wasmimport ostler:plugin/metrics@0.1.0 gauge
func hostMetricsGauge(a0 uint32, a1 uint32, a2 float64)

// MetricsGauge:
// Sets a gauge.
func MetricsGauge(name string, value float64) {
	defer release()
	address123, count124 := lowerString(name)
	hostMetricsGauge(address123, count124, value)
}

//go:wasmimport ostler:plugin/clock@0.1.0 now
func hostClockNow() uint64

// ClockNow:
// Returns the current time.
func ClockNow() uint64 {
	defer release()
	r := uint64(hostClockNow())
	return r
}

//go:wasmimport ostler:plugin/clock@0.1.0 remaining
func hostClockRemaining() uint64

// ClockRemaining:
// Returns the time that is left for this call. It is 0 while the host shuts
// down: the plugin should finish early.
func ClockRemaining() uint64 {
	defer release()
	r := uint64(hostClockRemaining())
	return r
}

//go:wasmimport ostler:plugin/config@0.1.0 get
func hostConfigGet(a0 uint32)

// ConfigGet:
// Returns the configuration from the administrator as a JSON object; `{}`
// if there is none.
func ConfigGet() []byte {
	defer release()
	answer := allocate(8, 4)
	hostConfigGet(answer)
	r := loadBytes(answer)
	return r
}

//go:wasmimport ostler:plugin/cache@0.1.0 get
func hostCacheGet(a0 uint32, a1 uint32, a2 uint32)

// CacheGet:
// Returns the value of a key, or none if there is none.
func CacheGet(key string) *[]byte {
	defer release()
	address125, count126 := lowerString(key)
	answer := allocate(12, 4)
	hostCacheGet(address125, count126, answer)
	r := loadOptionBytes(answer)
	return r
}

//go:wasmimport ostler:plugin/cache@0.1.0 set
func hostCacheSet(a0 uint32, a1 uint32, a2 uint32, a3 uint32, a4 uint32)

// CacheSet:
// Sets the value of a key. Fails with `limit-exceeded` if the object would
// keep more bytes than its limit, which the text names.
func CacheSet(key string, value []byte) *Error {
	defer release()
	address127, count128 := lowerString(key)
	address129, count130 := lowerBytes(value)
	answer := allocate(104, 8)
	hostCacheSet(address127, count128, address129, count130, answer)
	r := loadResultUnitOrError(answer)
	return r.Err
}

//go:wasmimport ostler:plugin/cache@0.1.0 delete
func hostCacheDelete(a0 uint32, a1 uint32)

// CacheDelete:
// Removes a key.
func CacheDelete(key string) {
	defer release()
	address131, count132 := lowerString(key)
	hostCacheDelete(address131, count132)
}

func loadMessagesDelivery(p uint32) (v MessagesDelivery) {
	v.Broker = loadUpstreamRef(p + 0)
	v.Queue = loadString(p + 32)
	v.Exchange = loadString(p + 40)
	v.RoutingKey = loadString(p + 48)
	v.Properties = loadMessageProperties(p + 56)
	v.Body = loadBytes(p + 208)
	v.DeliveryCount = load[uint32](p + 216)
	return v
}

func storeMessagesDelivery(p uint32, v MessagesDelivery) {
	storeUpstreamRef(p+0, v.Broker)
	storeString(p+32, v.Queue)
	storeString(p+40, v.Exchange)
	storeString(p+48, v.RoutingKey)
	storeMessageProperties(p+56, v.Properties)
	storeBytes(p+208, v.Body)
	store(uint32(p+216), v.DeliveryCount)
}

func loadMessagesDisposition(p uint32) (v MessagesDisposition) {
	v.Case = load[MessagesDispositionCase](p)
	switch v.Case {
	case MessagesDispositionRetryAfter:
		v.RetryAfter = load[uint64](p + 8)
	case MessagesDispositionReject:
		v.Reject = loadString(p + 8)
	}
	return v
}

func storeMessagesDisposition(p uint32, v MessagesDisposition) {
	store(p, v.Case)
	switch v.Case {
	case MessagesDispositionRetryAfter:
		store(uint32(p+8), v.RetryAfter)
	case MessagesDispositionReject:
		storeString(p+8, v.Reject)
	}
}

func loadResultMessagesDispositionOrError(p uint32) (v Result[MessagesDisposition, Error]) {
	if load[uint8](p) == 0 {
		v.Ok = loadMessagesDisposition(p + 8)
	} else {
		failed := loadError(p + 8)
		v.Err = &failed
	}
	return v
}

func storeResultMessagesDispositionOrError(p uint32, v Result[MessagesDisposition, Error]) {
	store(p, uint8(flag(v.Err != nil)))
	if v.Err == nil {
		storeMessagesDisposition(p+8, v.Ok)
	} else {
		storeError(p+8, *v.Err)
	}
}

// CallMessagesHandle is the body of an entry point.
func CallMessagesHandle(p uint32) uint32 {
	delivery := loadMessagesDelivery(p + 0)
	release()
	result := MessagesExports.Handle(delivery)
	answer := allocate(104, 8)
	storeResultMessagesDispositionOrError(answer, result)
	return answer
}

// PostMessagesHandle is called when the host has read the result.
func PostMessagesHandle() { release() }

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
	v.MaxConcurrent = loadOptionUint32(p + 24)
	return v
}

func storeReconcilerDescriptor(p uint32, v ReconcilerDescriptor) {
	storeString(p+0, v.Name)
	storeString(p+8, v.Version)
	storeListReconcilerReconciledKind(p+16, v.Kinds)
	storeOptionUint32(p+24, v.MaxConcurrent)
}

//go:wasmexport ostler:plugin/reconciler@0.1.0#describe
func exportReconcilerDescribe() uint32 {
	release()
	result := ReconcilerExports.Describe()
	answer := allocate(32, 4)
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

func loadCondition(p uint32) (v Condition) {
	v.Type = loadString(p + 0)
	v.Status = loadConditionStatus(p + 8)
	v.Reason = loadString(p + 12)
	v.Message = loadString(p + 20)
	return v
}

func storeCondition(p uint32, v Condition) {
	storeString(p+0, v.Type)
	storeConditionStatus(p+8, v.Status)
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

// CallLifecycleInitialize is the body of an entry point.
func CallLifecycleInitialize() uint32 {
	release()
	result := LifecycleExports.Initialize()
	answer := allocate(104, 8)
	storeResultUnitOrError(answer, result)
	return answer
}

// PostLifecycleInitialize is called when the host has read the result.
func PostLifecycleInitialize() { release() }

// CallLifecycleUpgrade is the body of an entry point.
func CallLifecycleUpgrade(a0, a1 uint32) uint32 {
	p := allocate(8, 4)
	store(p+0, a0)
	store(p+4, a1)
	object := loadBytes(p + 0)
	release()
	result := LifecycleExports.Upgrade(object)
	answer := allocate(104, 8)
	storeResultOptionBytesOrError(answer, result)
	return answer
}

// PostLifecycleUpgrade is called when the host has read the result.
func PostLifecycleUpgrade() { release() }
