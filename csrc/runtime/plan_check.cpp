#include "base/aligned.h"
#include "runtime/plan.h"

namespace legato {
namespace {

// One op with what it refers to; every check that fails throws with the op's index and kind.
class OpChecker {
 public:
  OpChecker(const PlanSpec& plan, std::span<const TensorView> tensors, size_t index)
      : plan_(plan), tensors_(tensors), index_(index), op_(plan.ops[index]) {}

  void check() const {
    need(op_.x != op_.out, "reads and writes the same buffer");
    need((op_.x < 0) == (op_.kind == OpKind::embed), "has a wrong number of inputs");
    switch (op_.kind) {
      case OpKind::embed:
        return check_embed();
      case OpKind::norm:
        return check_norm();
      case OpKind::linear:
        return check_linear();
      case OpKind::heads_to_cache:
        return check_heads();
      case OpKind::attention:
        return check_attention();
      case OpKind::select_rows:
        return check_select();
      case OpKind::logits:
        return check_logits();
    }
  }

 private:
  void need(bool ok, const char* what) const {
    if (!ok) throw EngineFileError("PLAN: op " + std::to_string(index_) + " (" + op_name(op_.kind) + ") " + what);
  }
  const BufferSpec& x() const { return plan_.buffers[static_cast<size_t>(op_.x)]; }
  const BufferSpec& out() const { return plan_.buffers[static_cast<size_t>(op_.out)]; }
  const TensorView& tensor(int32_t index, TensorKind kind) const {
    need(index >= 0 && static_cast<size_t>(index) < tensors_.size(), "lacks a tensor");
    need(tensors_[static_cast<size_t>(index)].kind == kind, "has a tensor of the wrong kind");
    return tensors_[static_cast<size_t>(index)];
  }
  void vector(int32_t index, int32_t width) const {
    if (index >= 0) need(tensor(index, TensorKind::vector).n == width, "has a vector of the wrong length");
  }
  bool f32(const BufferSpec& buffer) const { return buffer.type == ActType::f32; }

  void check_embed() const {
    const TensorView& table = tensor(op_.weight, TensorKind::table);
    need(table.k == out().width && table.n >= plan_.vocab, "has a table of the wrong shape");
    need(f32(out()) && !out().out_domain, "must write f32 rows");
  }

  void check_norm() const {
    need(f32(x()) && x().width == out().width && x().out_domain == out().out_domain, "has buffers that do not match");
    need(op_.weight >= 0, "lacks its weight");
    vector(op_.weight, x().width);
    vector(op_.weight2, x().width);
  }

  const Weight& matmul() const {
    const Weight& w = tensor(op_.weight, TensorKind::linear).weight;
    need(w.k == x().width, "has a weight that does not match its input");
    need(linear_accepts(describe_acts(x()), w), "has an input format its weight cannot take");
    need(x().out_domain == out().out_domain, "has buffers of two domains");
    vector(op_.weight2, w.n);
    check_padding();
    return w;
  }

  // Stores some columns of its output only.
  bool is_partial(const OpSpec& op) const {
    return op.kind == OpKind::linear && op.epilogue == EpilogueKind::store &&
           tensor(op.weight, TensorKind::linear).n < plan_.buffers[static_cast<size_t>(op.out)].width;
  }

  // Pad columns of a matmul's input are zeros: only the ops that write activations in full see to that.
  void check_padding() const {
    if (x().width % kPanel == 0) return;
    for (const OpSpec& op : plan_.ops) {
      if (op.out != op_.x) continue;
      const bool pads = op.kind == OpKind::norm || op.kind == OpKind::attention ||
                        (op.kind == OpKind::linear && op.epilogue != EpilogueKind::add && !is_partial(op));
      need(pads, "reads a buffer whose pad is not written");
    }
  }

  void check_linear() const {
    const Weight& w = matmul();
    need(op_.column == 0 || op_.epilogue == EpilogueKind::store, "has a column but does not store");
    if (is_partial(op_)) {
      need(f32(out()) && int64_t{op_.column} + w.n <= out().width, "stores columns that its output lacks");
    } else if (op_.epilogue == EpilogueKind::glu) {
      need(static_cast<size_t>(w.n) == 2 * round_up(static_cast<size_t>(out().width), kPanel),
           "has an interleaved weight of the wrong width");
    } else {
      need(w.n == out().width, "has a weight that does not match its output");
    }
    need(op_.epilogue != EpilogueKind::add || f32(out()), "adds to a buffer that is not f32");
  }

  void check_logits() const {
    const Weight& w = matmul();
    need(w.n == plan_.vocab && w.n == out().width && f32(out()) && out().out_domain, "does not give f32 logits");
  }

  const GroupSpec& group() const {
    need(static_cast<size_t>(op_.group) < plan_.groups.size(), "names a cache group that does not exist");
    const GroupSpec& group = plan_.groups[static_cast<size_t>(op_.group)];
    need(op_.layer < group.layers, "names a layer that its cache group lacks");
    need(op_.kv_heads == group.kv_heads && op_.head_dim == group.head_dim, "does not match its cache group");
    need(op_.heads > 0 && op_.heads % op_.kv_heads == 0, "has heads that KV heads do not divide");
    need(f32(x()) && !x().out_domain && !out().out_domain, "must read f32 rows");
    return group;
  }

  void check_heads() const {
    group();
    const int64_t q = int64_t{op_.heads} * op_.head_dim;
    need(out().width == q && f32(out()), "has an output of the wrong width");
    need(x().width == q + 2 * int64_t{op_.kv_heads} * op_.head_dim, "has an input of the wrong width");
    vector(op_.weight, op_.head_dim);
    vector(op_.weight2, op_.head_dim);
    if (op_.rope >= 0) {
      need(plan_.ropes[static_cast<size_t>(op_.rope)].dim <= op_.head_dim, "rotates more than its head_dim");
    }
  }

  void check_attention() const {
    const GroupSpec& group = this->group();
    const int64_t width = int64_t{op_.heads} * op_.head_dim;
    need(x().width == width && out().width == width, "has buffers of the wrong width");
    need(group.window == 0 || (op_.window > 0 && op_.window <= group.window), "looks behind its group's window");
  }

  void check_select() const {
    need(f32(x()) && f32(out()) && x().width == out().width, "has buffers that do not match");
    need(!x().out_domain && out().out_domain, "must go from rows to output rows");
  }

  const PlanSpec& plan_;
  std::span<const TensorView> tensors_;
  size_t index_;
  const OpSpec& op_;
};

}  // namespace

void check_plan(const PlanSpec& plan, std::span<const TensorView> tensors) {
  size_t logits = 0, selects = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    OpChecker(plan, tensors, i).check();
    if (plan.ops[i].kind == OpKind::logits) ++logits;
    if (plan.ops[i].kind == OpKind::select_rows) ++selects;
  }
  if (logits != 1 || plan.ops.back().kind != OpKind::logits)
    throw EngineFileError("PLAN: must end with its only logits op");
  if (selects == 0) throw EngineFileError("PLAN: never selects the output rows");
}

}  // namespace legato
