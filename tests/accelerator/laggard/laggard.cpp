// laggard: an accelerator for tests. Its memory is the host's, its kernels are the CPU's, and both
// kernels and copies run late, each stream on a thread of its own. What is read too early, or after
// its memory was given back, is bytes of 0x7f.
//
// As on a real device, copies between page-locked memory and the device with `non_blocking=True`
// and, where `kernel_us` is set, all kernels return at once and run when their stream comes to
// them. Memory that is freed is poisoned in the order of the stream that it was allocated on, after
// the streams of `record_stream`. Random numbers are drawn at the call, by the CPU's generator.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
using c10::Stream;
using c10::StreamId;
using Clock = std::chrono::steady_clock;

constexpr auto kLaggard = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDeviceCount = 2;
constexpr int kPoison = 0x7f;
constexpr size_t kPoisonedBytes = 1 << 26;  // a test of what is full shall not fill the host
constexpr int64_t kPieceCount = 64;

std::atomic<int64_t> kernel_us{0}, copy_us{0}, us_per_mib{0}, memory_bytes{int64_t(1) << 32};
std::atomic<int64_t> kernels_left{0};  // 0: for ever
std::atomic<bool> is_lost{false};
std::atomic<int64_t> late_kernels{0}, prompt_kernels{0}, late_copies{0}, prompt_copies{0},
    host_waits{0}, busy_ns{0};

void sleep_us(int64_t us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

int64_t transfer_us(size_t byte_count) {
  return copy_us.load() + us_per_mib.load() * int64_t(byte_count) / (1 << 20);
}

// ---- streams and events

struct Mark {
  std::mutex mutex;
  std::condition_variable come;
  bool has_come = true;
  Clock::time_point at;

  void arrive() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      has_come = true;
      at = Clock::now();
    }
    come.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    come.wait(lock, [this] { return has_come; });
  }
  bool query() {
    std::lock_guard<std::mutex> lock(mutex);
    return has_come;
  }
};
using Event = std::shared_ptr<Mark>;

class Queue {
 public:
  Queue() { std::thread([this] { run(); }).detach(); }

  void push(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
      ++pushed_;
    }
    changed_.notify_all();
  }
  Event record() {
    auto mark = std::make_shared<Mark>();
    mark->has_come = false;
    push([mark] { mark->arrive(); });
    return mark;
  }
  bool is_idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pushed_ == done_;
  }
  // Waits on the host for all that was pushed so far; says what went wrong there.
  void drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto until = pushed_;
    if (done_ < until) ++host_waits;
    changed_.wait(lock, [&] { return done_ >= until; });
    if (!error_.empty()) {
      auto what = std::move(error_);
      error_.clear();
      TORCH_CHECK(false, "A late kernel failed: ", what);
    }
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::string what;
      try {
        task();
      } catch (const std::exception& error) {
        what = error.what();
      }
      task = nullptr;
      lock.lock();
      if (error_.empty()) error_ = what;
      ++done_;
      lock.unlock();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t pushed_ = 0, done_ = 0;
  std::string error_;
};

// Never destroyed: their threads live as long as the process.
struct Streams {
  std::mutex mutex;
  std::vector<Queue*> queues[kDeviceCount];
  pid_t owner = 0;

  Queue& at(DeviceIndex device, StreamId id) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!owner) owner = getpid();
    TORCH_CHECK(owner == getpid(),
                "Cannot re-initialize laggard in forked subprocess: use the 'spawn' start method");
    TORCH_CHECK(!is_lost, "laggard error: unspecified launch failure");
    auto& of = queues[device];
    while (int64_t(of.size()) <= id) of.push_back(new Queue);
    return *of[id];
  }
  StreamId add(DeviceIndex device) {
    at(device, 0);
    std::lock_guard<std::mutex> lock(mutex);
    queues[device].push_back(new Queue);
    return StreamId(queues[device].size() - 1);
  }
  std::vector<Queue*> all(DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex);
    return queues[device];
  }
  bool is_forked() {
    std::lock_guard<std::mutex> lock(mutex);
    return owner && owner != getpid();
  }
};

Streams& streams() {
  static auto* found = new Streams;
  return *found;
}

thread_local DeviceIndex here = 0;
thread_local StreamId current[kDeviceCount] = {0, 0};

Queue& queue_of(DeviceIndex device) { return streams().at(device, current[device]); }

bool all_idle(DeviceIndex device) {
  for (auto* queue : streams().all(device))
    if (!queue->is_idle()) return false;
  return true;
}

// ---- memory

// Memory that processes share, in pieces: who has bound the name of a piece holds it, and its end
// gives it back, however it comes. Such names are in no file system and no process namespace.
class Pieces {
 public:
  int64_t size() const { return std::max<int64_t>(1, memory_bytes.load() / kPieceCount); }
  int64_t held() const { return int64_t(sockets_.size()) * size(); }

  // Holds as many as `byte_count` takes; false where others have them.
  bool hold(DeviceIndex device, int64_t byte_count) {
    const auto wanted = size_t((byte_count + size() - 1) / size());
    for (int64_t i = 0; i < kPieceCount && sockets_.size() < wanted; ++i) take(device, i);
    while (sockets_.size() > wanted) give_back();
    return sockets_.size() == wanted;
  }
  int64_t free(DeviceIndex device) const {
    std::ifstream names("/proc/net/unix");
    const auto prefix = "@" + name(device, "");
    int64_t count = 0;
    for (std::string line; std::getline(names, line);) count += line.find(prefix) != line.npos;
    return (kPieceCount - count) * size();
  }

 private:
  static std::string name(DeviceIndex device, const std::string& piece) {
    return std::string("laggard/") + getenv("LAGGARD_SHARED") + "/" + std::to_string(device) + "/" +
        piece;
  }
  void take(DeviceIndex device, int64_t index) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const auto text = name(device, std::to_string(index));
    memcpy(address.sun_path + 1, text.data(), text.size());
    const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const auto length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    if (bind(socket, reinterpret_cast<sockaddr*>(&address), length))
      close(socket);
    else
      sockets_.push_back(socket);
  }
  void give_back() {
    close(sockets_.back());
    sockets_.pop_back();
  }
  std::vector<int> sockets_;
};

struct Block {
  size_t size;
  DeviceIndex device;
  StreamId stream;
  std::set<StreamId> used_by;
};

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (!size) return {nullptr, nullptr, &drop, Device(kLaggard, here)};
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = stats_[here];
    const auto wanted = int64_t(size) + stats.allocated_bytes[0].current;
    if (wanted > memory_bytes.load() || (is_shared_ && !pieces_[here].hold(here, wanted))) {
      ++stats.num_ooms;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "laggard out of memory. Tried to allocate ", size,
                       " bytes");
    }
    void* block = nullptr;
    TORCH_CHECK(!posix_memalign(&block, 64, size));
    memset(block, kPoison, std::min(size, kPoisonedBytes));
    blocks_[block] = {size, here, current[here], {}};
    stats.allocation[0].increase(1);
    stats.allocated_bytes[0].increase(size);
    stats.reserved_bytes[0].increase(size);
    return {block, block, &drop, Device(kLaggard, here)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t size) const override {
    memcpy(to, from, size);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override;
  void recordStream(const c10::DataPtr& data, Stream stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = blocks_.find(data.get_context());
    if (found != blocks_.end() && stream.id() != found->second.stream)
      found->second.used_by.insert(stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_[device];
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_[device].allocated_bytes[0].reset_accumulated();
    stats_[device].reserved_bytes[0].reset_accumulated();
  }
  void resetPeakStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_[device].allocated_bytes[0].reset_peak();
    stats_[device].reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto total = memory_bytes.load();
    const auto left = is_shared_ ? pieces_[device].free(device)
                                 : total - stats_[device].allocated_bytes[0].current;
    return {size_t(left), size_t(total)};
  }

 private:
  static void drop(void* block);
  Block take(void* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = std::move(blocks_.extract(block).mapped());
    auto& stats = stats_[found.device];
    stats.allocation[0].decrease(1);
    stats.allocated_bytes[0].decrease(found.size);
    stats.reserved_bytes[0].decrease(found.size);
    if (is_shared_) pieces_[found.device].hold(found.device, stats.allocated_bytes[0].current);
    return found;
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  c10::CachingDeviceAllocator::DeviceStats stats_[kDeviceCount];
  Pieces pieces_[kDeviceCount];
  const bool is_shared_ = getenv("LAGGARD_SHARED");
};

// Never destroyed: tensors are dropped until the process has ended.
Memory& memory() {
  static auto* found = new Memory;
  return *found;
}

// Memory goes back to a driver when nobody can be using it: a real one waits for all kernels.
void Memory::emptyCache(c10::MempoolId_t) {
  for (DeviceIndex device = 0; device < kDeviceCount; ++device)
    for (auto* queue : streams().all(device)) queue->drain();
}

// The block may be used again on the stream of its allocation from now on, and on others once the
// streams that were recorded have come so far. Its bytes go back to the host only when nobody can
// be reading them: a reader that comes too late shall find poison, not crash.
void Memory::drop(void* block) {
  if (!block || streams().is_forked()) return;
  const auto found = memory().take(block);
  if (is_lost || all_idle(found.device)) {
    memset(block, kPoison, std::min(found.size, kPoisonedBytes));
    free(block);
    return;
  }
  std::vector<Event> readers;
  for (auto id : found.used_by) readers.push_back(streams().at(found.device, id).record());
  streams().at(found.device, found.stream).push([block, readers, size = found.size] {
    for (auto& reader : readers) reader->wait();
    memset(block, kPoison, std::min(size, kPoisonedBytes));
  });
  std::shared_ptr<void> last(block, free);
  for (auto* queue : streams().all(found.device)) queue->push([last] { (void)last; });
}

// Page-locked memory goes back once no copy can be using it, as torch's own allocators see to.
class Pinned final : public at::HostAllocator {
 public:
  at::DataPtr allocate(size_t size) override {
    void* block = nullptr;
    if (size) {
      TORCH_CHECK(!posix_memalign(&block, 64, size));
      std::lock_guard<std::mutex> lock(mutex_);
      blocks_[static_cast<char*>(block)] = size;
    }
    return {block, block, &drop, Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t size) const override {
    memcpy(to, from, size);
  }
  bool record_event(void*, void*, Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  bool holds(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto place = static_cast<char*>(const_cast<void*>(address));
    auto after = blocks_.upper_bound(place);
    return after != blocks_.begin() && place < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  static void drop(void* block);
  std::mutex mutex_;
  std::map<char*, size_t> blocks_;
};

Pinned& pinned() {
  static auto* found = new Pinned;
  return *found;
}

void Pinned::drop(void* block) {
  if (!block) return;
  {
    std::lock_guard<std::mutex> lock(pinned().mutex_);
    pinned().blocks_.erase(static_cast<char*>(block));
  }
  std::shared_ptr<void> last(block, free);
  if (streams().is_forked()) return;
  for (DeviceIndex device = 0; device < kDeviceCount; ++device)
    for (auto* queue : streams().all(device))
      if (!queue->is_idle()) queue->push([last] { (void)last; });
}

// ---- what torch asks of a device

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr auto static_type = kLaggard;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kLaggard; }
  Device exchangeDevice(Device device) const override {
    auto before = here;
    here = device.index();
    return {kLaggard, before};
  }
  Device getDevice() const override { return {kLaggard, here}; }
  void setDevice(Device device) const override { here = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override { here = device.index(); }
  DeviceIndex deviceCount() const noexcept override { return kDeviceCount; }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }

  DeviceIndex index_of(Device device) const { return device.has_index() ? device.index() : here; }
  Stream stream(DeviceIndex device, StreamId id) const {
    return Stream(Stream::UNSAFE, Device(kLaggard, device), id);
  }
  Stream getStream(Device device) const override {
    return stream(index_of(device), current[index_of(device)]);
  }
  Stream getDefaultStream(Device device) const override { return stream(index_of(device), 0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device); }
  Stream getNewStream(Device device, int = 0) const override {
    return stream(index_of(device), streams().add(index_of(device)));
  }
  Stream exchangeStream(Stream next) const override {
    auto before = stream(next.device_index(), current[next.device_index()]);
    current[next.device_index()] = next.id();
    return before;
  }
  static Queue& queue(const Stream& s) { return streams().at(s.device_index(), s.id()); }
  bool queryStream(const Stream& s) const override { return queue(s).is_idle(); }
  void synchronizeStream(const Stream& s) const override { queue(s).drain(); }
  void synchronizeDevice(DeviceIndex device) const override {
    for (auto* each : streams().all(device < 0 ? here : device)) each->drain();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& s) const override {
    memory().recordStream(data, s);
  }

  static Event& event(void* handle) { return *static_cast<Event*>(handle); }
  void destroyEvent(void* handle, DeviceIndex) const noexcept override {
    delete static_cast<Event*>(handle);
  }
  void record(void** handle, const Stream& s, DeviceIndex, c10::EventFlag) const override {
    auto mark = queue(s).record();
    if (*handle) event(*handle) = mark;
    else *handle = new Event(mark);
  }
  void block(void* handle, const Stream& s) const override {
    if (!handle) return;
    queue(s).push([mark = event(handle)] { mark->wait(); });
  }
  bool queryEvent(void* handle) const override { return !handle || event(handle)->query(); }
  void synchronizeEvent(void* handle) const override {
    if (!handle) return;
    if (!event(handle)->query()) ++host_waits;
    event(handle)->wait();
  }
  double elapsedTime(void* begin, void* end, DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(event(end)->at - event(begin)->at).count();
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDeviceCount; }
  void setCurrentDevice(DeviceIndex device) const override { here = device; }
  DeviceIndex getCurrentDevice() const override { return here; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    auto before = here;
    here = device;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? here : exchangeDevice(device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  bool isPinnedPtr(const void* address) const override {
    // As CUDA, which answers in no process that was forked after its start.
    TORCH_CHECK(!streams().is_forked(), "laggard error: initialization error");
    return pinned().holds(address);
  }
  Device getDeviceFromPtr(void*) const override { return {kLaggard, here}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    queue_of(storage.device().index()).drain();
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), size);
  }
};

// ---- tensors

bool is_ours(const Tensor& t) { return t.defined() && t.device().type() == kLaggard; }

// The same bytes as a tensor of the CPU. It holds no reference: who keeps the memory alive is a
// matter of the script and of `record_stream`, as on a real device.
Tensor as_cpu(const Tensor& t) {
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU));
}

Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
             std::optional<c10::Layout>, std::optional<Device> device, std::optional<bool>,
             std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                     std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, &memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor empty_as(const Tensor& like, Device device) {
  return at::empty_strided(like.sizes(), like.strides(), like.options().device(device));
}

void run_timed(const std::function<void()>& work) {
  const auto begun = Clock::now();
  work();
  busy_ns += (Clock::now() - begun).count();
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  const bool between_hosts = self.is_cpu() || to.is_cpu();
  const auto device = is_ours(to) ? to.device().index() : self.device().index();
  auto& queue = queue_of(device);
  const bool is_raw = self.dtype() == to.dtype() && self.sizes() == to.sizes() &&
      self.strides() == to.strides() && self.is_non_overlapping_and_dense();
  const auto from_cpu = self.is_cpu() ? self : as_cpu(self);
  const auto to_cpu = to.is_cpu() ? to : as_cpu(to);
  const auto us = between_hosts ? transfer_us(to.nbytes()) : kernel_us.load();
  if (between_hosts && non_blocking && is_raw &&
      pinned().holds((self.is_cpu() ? self : to).data_ptr())) {
    ++late_copies;
    queue.push([from = self.data_ptr(), dst = to.data_ptr(), size = self.nbytes(), us] {
      run_timed([&] {
        sleep_us(us);
        memcpy(dst, from, size);
      });
    });
    return to;
  }
  if (!between_hosts && self.device() == to.device()) {
    queue.push([from_cpu, to_cpu, us] {
      at::AutoDispatchBelowADInplaceOrView guard;
      run_timed([&] {
        sleep_us(us);
        to_cpu.copy_(from_cpu);
      });
    });
    if (!us) queue.drain();
    return to;
  }
  ++prompt_copies;
  queue.drain();
  if (is_ours(self) && is_ours(to)) queue_of(self.device().index()).drain();
  run_timed([&] {
    sleep_us(us);
    to_cpu.copy_(from_cpu);
  });
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  at::native::resize_(to, self.sizes());
  return copy_from(self, to, false);
}

c10::Scalar item(const Tensor& t) {
  queue_of(t.device().index()).drain();
  return at::native::_local_scalar_dense_cpu(as_cpu(t));
}

// ---- kernels

using Change = std::function<Tensor(const Tensor&)>;

IValue changed(const IValue& value, Device device, const Change& change) {
  if (value.isTensor()) {
    const auto& t = value.toTensor();
    return t.defined() ? IValue(change(t)) : value;
  }
  if (value.isTensorList()) {
    c10::List<Tensor> found;
    for (const auto& t : value.toTensorVector()) found.push_back(t.defined() ? change(t) : t);
    return found;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> found;
    for (const auto& t : value.toOptionalTensorVector())
      found.push_back(t && t->defined() ? std::optional<Tensor>(change(*t)) : t);
    return found;
  }
  return value.isDevice() ? IValue(device) : value;
}

torch::jit::Stack changed(const torch::jit::Stack& args, Device device, const Change& change) {
  torch::jit::Stack found;
  for (const auto& each : args) found.push_back(changed(each, device, change));
  return found;
}

DeviceIndex device_of(const torch::jit::Stack& args) {
  DeviceIndex found = here;
  bool seen = false;
  for (const auto& each : args)
    changed(each, at::kCPU, [&](const Tensor& t) {
      if (!seen && is_ours(t)) {
        found = t.device().index();
        seen = true;
      }
      return t;
    });
  return found;
}

// The argument that a result is, where the schema says that it is one.
std::optional<size_t> written(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!result.alias_info() || !result.alias_info()->isWrite()) return std::nullopt;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info && info->beforeSets() == result.alias_info()->beforeSets()) return i;
  }
  return std::nullopt;
}

// What the results look like, as the op itself says for tensors without data; none where it cannot.
std::optional<torch::jit::Stack> shapes(const c10::OperatorHandle& op,
                                        const torch::jit::Stack& args) {
  for (const auto& result : op.schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return std::nullopt;
  using at::Tag;
  for (auto tag : {Tag::data_dependent_output, Tag::dynamic_output_shape, Tag::nondeterministic_seeded})
    if (op.hasTag(tag)) return std::nullopt;
  auto stack = changed(args, at::kMeta, [](const Tensor& t) {
    return t.is_cpu() && !t.dim() ? t : empty_as(t, at::kMeta);
  });
  const auto before = stack;
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  for (size_t i = 0; i < args.size(); ++i)  // an output that has to grow is no case for a thread
    if (op.schema().arguments()[i].is_out() && before[i].isTensor() && args[i].isTensor() &&
        before[i].toTensor().sizes() != args[i].toTensor().sizes())
      return std::nullopt;
  for (const auto& each : stack)
    if (!each.isTensor() && !each.isTensorList()) return std::nullopt;
  return stack;
}

std::vector<Tensor> tensors_of(const IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<Tensor>{};
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

// Puts a kernel on the stream and returns its results, whose values come later.
torch::jit::Stack run_late(const c10::OperatorHandle& op, const torch::jit::Stack& args,
                           const torch::jit::Stack& meta, DeviceIndex device) {
  ++late_kernels;
  const Device to(kLaggard, device);
  torch::jit::Stack results;
  std::vector<std::pair<size_t, std::vector<Tensor>>> targets;
  for (size_t i = 0; i < meta.size(); ++i) {
    if (auto place = written(op.schema(), op.schema().returns()[i])) {
      results.push_back(args[*place]);
      continue;
    }
    results.push_back(changed(meta[i], to, [&](const Tensor& t) { return empty_as(t, to); }));
    std::vector<Tensor> cpu;
    for (const auto& t : tensors_of(results.back())) cpu.push_back(t.defined() ? as_cpu(t) : t);
    targets.emplace_back(i, cpu);
  }
  auto stack = changed(args, at::kCPU, [](const Tensor& t) {
    return is_ours(t) ? as_cpu(t) : t.clone();  // a host's number is read when the kernel starts
  });
  queue_of(device).push([op, stack, targets, us = kernel_us.load()]() mutable {
    run_timed([&] {
      sleep_us(us);
      compute(op, stack);
      at::AutoDispatchBelowADInplaceOrView guard;
      for (auto& [place, cpu] : targets) {
        const auto made = tensors_of(stack[place]);
        for (size_t i = 0; i < cpu.size(); ++i)
          // The CPU leaves out some that the op knows, such as what a norm saves to go back.
          if (cpu[i].defined() && made[i].numel()) cpu[i].copy_(made[i]);
      }
    });
  });
  return results;
}

// Runs a kernel at once, when all before it on the stream has ended.
torch::jit::Stack run_now(const c10::OperatorHandle& op, const torch::jit::Stack& args,
                          DeviceIndex device) {
  ++prompt_kernels;
  const Device to(kLaggard, device);
  queue_of(device).drain();
  const auto& schema = op.schema();
  std::vector<std::pair<Tensor, Tensor>> seen;  // tensors of ours, and the same bytes on the CPU
  torch::jit::Stack stack;
  for (size_t i = 0; i < args.size(); ++i)
    stack.push_back(changed(args[i], at::kCPU, [&](const Tensor& t) {
      if (!is_ours(t)) return t;
      auto cpu = schema.arguments()[i].is_out() ? at::empty({0}, t.options().device(at::kCPU)) : as_cpu(t);
      seen.emplace_back(t, cpu);
      return cpu;
    }));
  run_timed([&] {
    sleep_us(kernel_us.load());
    compute(op, stack);
  });
  torch::jit::Stack results;
  for (size_t i = 0; i < stack.size(); ++i) {
    results.push_back(changed(stack[i], to, [&](const Tensor& made) {
      for (auto& [ours, cpu] : seen) {
        if (!made.is_same(cpu)) continue;
        if (ours.data_ptr() != cpu.data_ptr() && cpu.numel()) {  // `out=`
          at::native::resize_(ours, cpu.sizes());
          as_cpu(ours).copy_(cpu);
        }
        return ours;
      }
      for (auto& [ours, cpu] : seen)
        if (cpu.numel() && made.storage().data_ptr().get() == cpu.storage().data_ptr().get() &&
            made.dtype() == ours.dtype())  // a view
          return at::as_strided(ours, made.sizes(), made.strides(),
                                ours.storage_offset() + made.storage_offset() - cpu.storage_offset());
      auto ours = empty_as(made, to);
      as_cpu(ours).copy_(made);
      return ours;
    }));
  }
  return results;
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  const torch::jit::Stack args(stack->end() - count, stack->end());
  torch::jit::drop(*stack, count);
  const auto device = device_of(args);
  if (kernels_left && !--kernels_left) is_lost = true;
  c10::DeviceGuard guard(Device(kLaggard, device));
  std::optional<torch::jit::Stack> meta;
  if (kernel_us.load() > 0) meta = shapes(op, args);
  auto results = meta ? run_late(op, args, *meta, device) : run_now(op, args, device);
  for (auto& each : results) stack->push_back(std::move(each));
}

c10::OperatorHandle named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const auto op = named("aten::convolution");
  run(op, stack);
}

void convolution_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const auto grad = stack->at(stack->size() - 10).toTensor();
  stack->insert(stack->end() - 7, IValue(std::vector<int64_t>{grad.size(1)}));  // of the bias
  static const auto op = named("aten::convolution_backward");
  run(op, stack);
}

using Three = std::tuple<Tensor, Tensor, Tensor>;

Three lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cx,
                const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  auto gates = input + hidden;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias + *hidden_bias;
  const auto parts = gates.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(),
             out = parts[3].sigmoid();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

Three lstm_cell_backward(const std::optional<Tensor>& grad_hy, const std::optional<Tensor>& grad_cy,
                         const Tensor& cx, const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const auto &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const auto squashed = cy.tanh();
  const auto hy = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cx);
  auto c = hy * out * (1 - squashed * squashed);
  if (grad_cy && grad_cy->defined()) c = c + *grad_cy;
  const auto gates = at::cat({c * cell * in * (1 - in), c * cx * forget * (1 - forget),
                              c * in * (1 - cell * cell), hy * squashed * out * (1 - out)}, 1);
  return {gates, c * forget, has_bias ? gates.sum(0) : Tensor()};
}

Tensor view(const Tensor& t, c10::SymIntArrayRef size) {
  return at::native::view(t, C10_AS_INTARRAYREF_SLOW(size));
}
Tensor reshape_alias(const Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
Tensor as_strided(const Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(t, size, stride, offset);
}
const Tensor& resize(const Tensor& t, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(t, C10_AS_INTARRAYREF_SLOW(size), format);
}
void record_stream(Tensor& t, Stream stream) {
  memory().recordStream(t.storage().data_ptr(), stream);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(kLaggard, &memory());
  at::setHostAllocator(kLaggard, &pinned());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("as_strided", as_strided);
  m.impl("resize_", resize);
  m.impl("record_stream", record_stream);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  m.impl("set_.source_Tensor", [](Tensor& t, const Tensor& source) -> Tensor& {
    return at::native::set_tensor_(t, source);
  });
  m.impl("set_.source_Storage", [](Tensor& t, at::Storage source) -> Tensor& {
    return at::native::set_(t, source);
  });
  m.impl("set_.source_Storage_storage_offset",
         [](Tensor& t, at::Storage source, int64_t offset, c10::IntArrayRef size,
            c10::IntArrayRef stride) -> Tensor& {
           return at::cpu::set_(t, source, offset, size, stride);
         });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at::autocast;
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(log_softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}

// ---- what tests ask of it, by ctypes

extern "C" {
void laggard_set(int64_t kernel, int64_t copy, int64_t per_mib, int64_t memory_size, int64_t kernels) {
  kernel_us = kernel;
  copy_us = copy;
  us_per_mib = per_mib;
  memory_bytes = memory_size;
  kernels_left = kernels;
}
void laggard_counts(int64_t* counts) {
  const std::atomic<int64_t>* all[] = {&late_kernels, &prompt_kernels, &late_copies,
                                       &prompt_copies, &host_waits, &busy_ns};
  for (int i = 0; i < 6; ++i) counts[i] = all[i]->load();
}
int laggard_is_forked() { return streams().is_forked(); }
int laggard_is_used() { return streams().owner == getpid(); }
void laggard_finish() {  // before the libraries go that its threads call
  if (streams().is_forked()) return;
  for (DeviceIndex device = 0; device < kDeviceCount; ++device)
    for (auto* queue : streams().all(device)) queue->record()->wait();
}
}
