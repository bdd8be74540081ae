// Streams, events, memory and generators of the devices.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/fake_device/world.hpp"

namespace troupe::tests::fake_device {
namespace {

constexpr auto own_type = c10::DeviceType::PrivateUse1;

thread_local int device_of_thread = 0;
thread_local std::array<int, device_count> streams_of_thread{};  // on each device
thread_local std::uint64_t taken_by_thread = 0;                  // pieces of memory, so far

std::size_t index(int device) {
  return static_cast<std::size_t>(device);
}

int number_of(c10::Device on) {
  const int device = on.has_index() ? on.index() : device_of_thread;
  TORCH_CHECK(device < device_count, "invalid device ordinal: fake:", device, " of ", device_count);
  return device;
}

/// Streams and events.
struct guard_impl final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream make(int device, int stream) {
    return c10::Stream(c10::Stream::UNSAFE, fake_device::device(device), stream);
  }

  c10::DeviceType type() const override { return own_type; }
  c10::Device getDevice() const override { return fake_device::device(device_of_thread); }
  c10::Device exchangeDevice(c10::Device to) const override {
    const auto before = getDevice();
    setDevice(to);
    return before;
  }
  void setDevice(c10::Device to) const override { device_of_thread = number_of(to); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.has_index()) device_of_thread = to.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  c10::Stream getStream(c10::Device on) const override {
    const int device = number_of(on);
    return make(device, streams_of_thread[index(device)]);
  }
  c10::Stream getDefaultStream(c10::Device on) const override { return make(number_of(on), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool /*high*/) const override {
    const int device = number_of(on);
    const std::scoped_lock lock(the_world().mutex);
    auto& next = the_world().next_stream[index(device)];
    next = next % (streams_per_device - 2) + 1;  // the last is that of hold_memory
    return make(device, next);
  }
  c10::Stream getNewStream(c10::Device on, int /*priority*/) const override {
    return getStreamFromGlobalPool(on, false);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const auto before = getStream(to.device());
    streams_of_thread[index(number_of(to.device()))] = static_cast<int>(to.id());
    return before;
  }

  void record(void** made, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    const std::scoped_lock lock(the_world().mutex);
    ++the_world().found.events;
    if (*made == nullptr) *made = new vector_clock;
    *static_cast<vector_clock*>(*made) = the_world().tasks.record(index_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.block(index_of(stream), *static_cast<vector_clock*>(event));
  }
  bool queryEvent(void* event) const override {
    if (event != nullptr) wait_for(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    std::this_thread::sleep_for(the_world().wait_time.load());
    wait_for(event);
    const std::scoped_lock lock(the_world().mutex);
    ++the_world().found.event_waits;
    the_world().found.operators_since_wait = 0;
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<vector_clock*>(event);
  }

  bool queryStream(const c10::Stream& stream) const override {
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.host_waits(index_of(stream));
    the_world().deliver();
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const std::scoped_lock lock(the_world().mutex);
    auto& world = the_world();
    world.found.synchronisations.push_back("a wait for " + name_of_stream(index_of(stream)));
    world.tasks.host_waits(index_of(stream));
    world.deliver();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const std::scoped_lock lock(the_world().mutex);
    auto& world = the_world();
    world.found.synchronisations.push_back("a wait for fake:" + std::to_string(device));
    for (int i = 0; i < streams_per_device; ++i)
      world.tasks.host_waits(device * streams_per_device + i);
    world.deliver();
  }
  void recordDataPtrOnStream(const c10::DataPtr& of, const c10::Stream& stream) const override {
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.recorded(of.get(), index_of(stream));
  }

 private:
  static void wait_for(void* event) {
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.host_waits(*static_cast<vector_clock*>(event));
    the_world().deliver();
  }
};

/// What a piece's deleter needs.
struct piece {
  void* address;
  std::size_t bytes;
  int device;
};

void free_piece(void* context) {
  auto* const own = static_cast<piece*>(context);
  {
    auto& world = the_world();
    const std::scoped_lock lock(world.mutex);
    world.tasks.freed(own->address);
    world.used[index(own->device)] -= own->bytes;
    if (!the_memory().free(own->address)) ++world.found.overruns;
  }
  delete own;
}

class device_allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto on = fake_device::device(device_of_thread);
    if (bytes == 0) return {nullptr, nullptr, &free_piece_or_nothing, on};
    auto& world = the_world();
    const std::scoped_lock lock(world.mutex);
    auto& used = world.used[index(device_of_thread)];
    const auto limit = world.limit[index(device_of_thread)];
    void* const address =
        limit != 0 && used + bytes > limit ? nullptr : the_memory().allocate(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "fake:", device_of_thread,
                     " out of memory. Tried to allocate ", bytes, " bytes, of ", limit,
                     " bytes are ", limit - std::min(limit, used), " free.");
    used += bytes;
    ++taken_by_thread;
    auto& peak = world.peak[index(device_of_thread)];
    peak = std::max(peak, used);
    world.tasks.allocated(address, current_stream(device_of_thread));
    return {address, new piece{address, bytes, device_of_thread}, &free_piece_or_nothing, on};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(the_memory().seen_by_device(to),
                the_memory().seen_by_device(const_cast<void*>(from)), bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& of, c10::Stream stream) override {
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.recorded(of.get(), index_of(stream));
  }
  /// Of what is counted, bytes alone.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::scoped_lock lock(the_world().mutex);
    c10::CachingDeviceAllocator::DeviceStats found;
    auto& bytes =
        found.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = static_cast<std::int64_t>(the_world().used[index(device)]);
    bytes.peak = static_cast<std::int64_t>(the_world().peak[index(device)]);
    return found;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    static_cast<void>(take_peak_bytes(device));
  }
  /// Free, and all.
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::scoped_lock lock(the_world().mutex);
    const auto limit = the_world().limit[index(device)];
    const std::size_t all = limit != 0 ? limit : std::size_t{1} << 40;
    return {all - the_world().used[index(device)], all};
  }

 private:
  static void free_piece_or_nothing(void* context) {
    if (context != nullptr) free_piece(context);
  }
};

/// Of the host, for copies that nobody waits for.
class pinned_allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const at = std::malloc(std::max<std::size_t>(bytes, 1));
    const std::scoped_lock lock(the_world().pinned_mutex);
    the_world().pinned.insert(at);
    return {at, at, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release(void* at) {
    {
      const std::scoped_lock lock(the_world().pinned_mutex);
      the_world().pinned.erase(at);
    }
    std::free(at);
  }
};

struct hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  void setCurrentDevice(c10::DeviceIndex device) const override { device_of_thread = device; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(device_of_thread);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(device_of_thread, to));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override {
    return exchangeDevice(to);
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<at::CPUGeneratorImpl>();
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static pinned_allocator one;
    return &one;
  }
  bool isPinnedPtr(const void* at) const override {
    const std::scoped_lock lock(the_world().pinned_mutex);
    return the_world().pinned.contains(at);
  }
};

const c10::impl::DeviceGuardImplRegistrar registered(own_type, new guard_impl);

/// Operators that look at no element.
bool only_looks(std::string_view name) {
  static const std::set<std::string_view> all{
      "aten::alias",  "aten::as_strided", "aten::detach", "aten::is_pinned", "aten::narrow",
      "aten::select", "aten::slice",      "aten::split",  "aten::unbind",    "aten::view",
      "aten::to",     "aten::_to_copy"};  // the last two call copy_
  return all.contains(name);
}

/// Notes what an operator of the host reads that has not arrived.
void look_at(std::string_view name, const at::Tensor& given) {
  if (!given.defined() || !given.is_cpu() || !given.has_storage()) return;
  auto& world = the_world();
  const std::scoped_lock lock(world.mutex);
  for (const auto& due : world.deliveries)
    if (due.to.unsafeGetStorageImpl() == given.storage().unsafeGetStorageImpl())
      world.found.host_reads.push_back(std::string(name) + " on the host reads what " +
                                       due.by.task + " on " + name_of_stream(due.by.stream) +
                                       " brings, before an event says that it is there");
}

/// That a device reads it is another matter.
bool copies_to_device(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  return name == "aten::copy_" && inputs[0].isTensor() && !inputs[0].toTensor().is_cpu();
}

std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& operation) {
  const std::string_view name = operation.name();
  if (the_world().deliveries_due == 0 || only_looks(name)) return nullptr;
  const auto inputs = operation.inputs();
  if (copies_to_device(name, inputs)) return nullptr;
  for (const auto& given : inputs.slice(name == "aten::copy_" ? 1 : 0)) {
    if (given.isTensor()) look_at(name, given.toTensor());
    if (given.isTensorList())
      for (const at::Tensor& each : given.toTensorList()) look_at(name, each);
  }
  return nullptr;
}

}  // namespace

c10::Device device(int which) {
  return {own_type, static_cast<c10::DeviceIndex>(which)};
}

world& the_world() {
  static auto* const one = new world;  // tensors may outlive everything else
  return *one;
}

memory& the_memory() {
  static auto* const one = new memory;
  return *one;
}

int current_device() {
  return device_of_thread;
}

std::uint64_t allocations_of_thread() {
  return taken_by_thread;
}

int current_stream(int device) {
  return device * streams_per_device + streams_of_thread[index(device)];
}

int index_of(const c10::Stream& stream) {
  return stream.device_index() * streams_per_device + static_cast<int>(stream.id());
}

void world::deliver() {
  std::erase_if(deliveries, [this](const delivery& each) {
    if (!tasks.is_known_to_host(each.by)) return false;
    std::memcpy(each.at, each.bytes.data(), each.bytes.size());
    return true;
  });
  deliveries_due = deliveries.size();
}

void world::deliver_to(int stream, const void* storage) {
  std::erase_if(deliveries, [&](const delivery& each) {
    if (each.to.unsafeGetStorageImpl() != storage) return false;
    if (!tasks.is_known_to(stream, each.by) && !tasks.is_known_to_host(each.by))
      found.races.push_back(tasks.now(stream).task + " on " + name_of_stream(stream) +
                            " reads on the host what " + each.by.task + " on " +
                            name_of_stream(each.by.stream) + " writes, and nothing orders them");
    std::memcpy(each.at, each.bytes.data(), each.bytes.size());
    return true;
  });
  deliveries_due = deliveries.size();
}

void install_backend() {
  static device_allocator allocator;
  static hooks own_hooks;
  c10::register_privateuse1_backend("fake");
  c10::SetAllocator(own_type, &allocator);
  at::RegisterPrivateUse1HooksInterface(&own_hooks);
  at::addGlobalCallback(
      at::RecordFunctionCallback(look).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

}  // namespace troupe::tests::fake_device
