export {
  Activity, ArrowLeft, BookOpen, Brain, ChartColumn, Check, ChevronDown, ChevronUp, CircleQuestionMark, Clock, Database, FileUp, GitCompareArrows,
  KeyRound, LayoutPanelLeft, ListTree, Pause, PanelRight, Play, Plug, Plus, Search, Settings, Share2, SquareTerminal, StepBack, StepForward, Table2,
  Trash2, TriangleAlert, Waypoints, X,
} from "lucide";
