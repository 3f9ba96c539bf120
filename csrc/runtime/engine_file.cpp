#include "runtime/engine_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/aligned.h"
#include "kernels/pack.h"
#include "runtime/sha256.h"

namespace legato {
namespace {

static_assert(std::endian::native == std::endian::little, "the engine file is little-endian");

constexpr char kMagic[] = "LEGATOEF";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kSections = 4;
constexpr size_t kHeaderSize = 64;
constexpr size_t kHashAt = 32;  // in the header
constexpr size_t kSectionSize = 64;
constexpr size_t kHeadSize = kHeaderSize + kSections * kSectionSize;
constexpr size_t kTensorRecord = 96;

enum SectionKind : uint32_t { kMeta = 1, kPlan = 2, kTensors = 3, kData = 4 };

void need(bool ok, const std::string& what) {
  if (!ok) throw EngineFileError(what);
}

// Sections by kind - 1; META and DATA are not hashed here (DATA is covered by the tensor hashes, META is not read).
std::vector<std::span<const uint8_t>> read_sections(std::span<const uint8_t> bytes) {
  need(bytes.size() >= kHeadSize && std::memcmp(bytes.data(), kMagic, 8) == 0, "no engine file header");
  RecordReader in(bytes.first(kHeadSize), "header");
  in.skip(8);
  const uint32_t version = in.u32();
  need(version == kVersion, "version " + std::to_string(version) + ", this build reads " + std::to_string(kVersion));
  need(in.u32() == kSections, "a wrong number of sections");
  need(in.u64() == bytes.size(), "the file size differs from the header's");
  need(in.u64() == kHeadSize, "a wrong header size");
  const auto stored = in.take(32);

  std::vector<uint8_t> header(bytes.begin(), bytes.begin() + kHeadSize);
  std::fill_n(header.begin() + kHashAt, 32, uint8_t{0});
  const auto digest = sha256(header);
  need(std::equal(digest.begin(), digest.end(), stored.begin()), "the header hash differs");

  std::vector<std::span<const uint8_t>> sections;
  for (uint32_t kind = kMeta; kind <= kData; ++kind) {
    const std::string name = "section " + std::to_string(kind);
    need(in.u32() == kind, name + " is missing");
    in.skip(4);
    const uint64_t offset = in.u64(), size = in.u64();
    const auto hash = in.take(32);
    in.skip(8);
    need(offset % kAlignment == 0 && offset <= bytes.size() && size <= bytes.size() - offset,
         name + " lies outside the file");
    sections.push_back(bytes.subspan(offset, size));
    if (kind == kPlan || kind == kTensors) {
      const auto found = sha256(sections.back());
      need(std::equal(found.begin(), found.end(), hash.begin()), name + " is damaged (hash differs)");
    }
  }
  return sections;
}

// A weight whose record holds only what a packer can have written.
Weight read_weight(RecordReader& in, int32_t type, int32_t layout, const TensorView& view, uint64_t* bytes) {
  const int32_t n_pad = in.in_range("n_pad", 0, kMaxDim), k_pad = in.in_range("k_pad", 0, kMaxDim);
  const int32_t group = in.in_range("group", 0, 32);
  const int32_t zero = in.in_range("zero point", 0, 15), has_min = in.in_range("has_min", 0, 1);
  need(type <= static_cast<int32_t>(WeightType::i4), "TENSORS: weight type " + std::to_string(type) + " is unknown");
  Weight w{};
  *bytes = describe_weight(static_cast<WeightType>(type), view.n, view.k, group, zero, has_min, &w);
  need(*bytes > 0 && w.n_pad == n_pad && w.k_pad == k_pad && layout_id(w) == layout,
       "TENSORS: a weight's layout is not known here");
  return w;
}

// `data` is the DATA section, `begin` where it lies in the file.
TensorView read_tensor(RecordReader& in, std::span<const uint8_t> data, uint64_t begin) {
  TensorView view{};
  view.kind = static_cast<TensorKind>(in.in_range("tensor kind", 0, 2));
  const int32_t type = in.in_range("tensor type", 0, 5);
  const int32_t layout = in.in_range("layout", 0, 7);
  view.n = in.in_range("rows", 1, kMaxDim);
  view.k = in.in_range("columns", 1, kMaxDim);
  uint64_t expected = 0, unit = 0;
  if (view.kind == TensorKind::linear) {
    view.weight = read_weight(in, type, layout, view, &expected);
    unit = view.weight.panel_bytes;
  } else {
    in.skip(20);
    const bool table = view.kind == TensorKind::table;
    view.table_type = table ? static_cast<TableType>(type) : TableType::f32;
    view.row_bytes = table ? static_cast<int64_t>(source_row_bytes(view.table_type, view.k)) : 4;
    need(table || (type == 0 && view.k == 1), "TENSORS: a vector is malformed");
    need(view.row_bytes > 0 && layout == 0, "TENSORS: a table's rows are not whole blocks");
    unit = static_cast<uint64_t>(view.row_bytes);
    const size_t rows = table ? static_cast<size_t>(view.n) : round_up(static_cast<size_t>(view.n), kPanel);
    expected = rows * unit;
  }
  const uint64_t offset = in.u64(), size = in.u64(), stored_unit = in.u64();
  in.skip(32);
  need(size == expected && stored_unit == unit, "TENSORS: a tensor's size does not match its shape");
  need(offset % kAlignment == 0 && offset >= begin && offset - begin <= data.size() &&
           size <= data.size() - (offset - begin),
       "TENSORS: a tensor lies outside DATA");
  view.data = data.data() + (offset - begin);
  view.weight.panels = view.data;
  return view;
}

}  // namespace

EngineFile::Mapping::~Mapping() { munmap(data, size); }

EngineFile EngineFile::open(const std::string& path) {
  const int handle = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (handle < 0) throw EngineFileError(path + ": cannot open: " + std::strerror(errno));
  struct stat info{};
  const bool sized = fstat(handle, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
  const size_t size = sized ? static_cast<size_t>(info.st_size) : 0;
  void* data = sized ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, handle, 0) : MAP_FAILED;
  ::close(handle);
  if (data == MAP_FAILED) throw EngineFileError(path + ": cannot be mapped");
  std::shared_ptr<const Mapping> mapping(new Mapping{data, size});
  ::madvise(data, size, MADV_WILLNEED);  // all of it will be copied
  try {
    EngineFile file = parse({static_cast<const uint8_t*>(data), size});
    file.mapping_ = std::move(mapping);
    return file;
  } catch (const EngineFileError& error) {
    throw EngineFileError(path + ": not a usable engine file: " + error.what());
  }
}

EngineFile EngineFile::parse(std::span<const uint8_t> bytes) {
  const auto sections = read_sections(bytes);
  EngineFile file;
  file.data_ = sections[kData - 1];
  file.plan_ = parse_plan(sections[kPlan - 1]);
  RecordReader in(sections[kTensors - 1], "TENSORS");
  need(in.left() % kTensorRecord == 0 && in.left() / kTensorRecord <= 1 << 16, "TENSORS: a wrong size");
  const auto begin = static_cast<uint64_t>(file.data_.data() - bytes.data());
  while (in.left() > 0) file.tensors_.push_back(read_tensor(in, file.data_, begin));
  check_plan(file.plan_, file.tensors_);
  return file;
}

}  // namespace legato
